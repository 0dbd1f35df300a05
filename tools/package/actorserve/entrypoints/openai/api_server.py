"""`python -m actorserve.entrypoints.openai.api_server`: as `actorserve launch`, for scripts that start servers so."""

import sys

from actorserve.actors.cli import main

if __name__ == "__main__":
    sys.exit(main(["launch", *sys.argv[1:]]))
