"""`python -m actorserve`: the command line."""

import sys

from actorserve.actors.cli import main

if __name__ == "__main__":
    sys.exit(main())
