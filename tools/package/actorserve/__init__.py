"""actorserve: a large-language-model server of independent processes, over the OpenAI API."""

__version__ = "0.1.0"
