"""The files of the page, and of the list of paths, with their types."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("page")
TYPES = {
    "index.html": "text/html",
    "page.css": "text/css",
    "actors.css": "text/css",
    "docs.html": "text/html",
    "docs.css": "text/css",
    "docs.js": "text/javascript",
    "key.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "main.js": "text/javascript",
    "chat.js": "text/javascript",
    "turns.js": "text/javascript",
    "pictures.js": "text/javascript",
    "store.js": "text/javascript",
    "markdown.js": "text/javascript",
    "markdown-it.js": "text/javascript",  # as its authors ship it
    "markdown-it.LICENSE.txt": "text/plain",
    "sse.js": "text/javascript",
    "watch.js": "text/javascript",
    "map.js": "text/javascript",
    "blocks.js": "text/javascript",
    "numbers.js": "text/javascript",
}
