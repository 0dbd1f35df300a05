"""Calls of Functionary: >>>name, and its arguments in the next line; what is for the user is said to >>>all."""

from __future__ import annotations

from ..base import Broken, Steps
from ..calls import CallReader
from .json_calls import name_char

_ALL = "all"


class Functionary(CallReader):
    """The prompt ends in the first >>>, so that an answer begins with a name. V3.1: <function=name>{…}</function>."""

    starts = (">>>", "<function=")
    closers = ends = ("</function>",)

    def _read(self) -> Steps[None]:
        yield from self._try("")
        yield from super()._read()

    def _call(self, marker: str) -> Steps[None]:
        name = yield from self._run_of(name_char)
        yield from self._expect(">" if marker == "<function=" else "\n")
        if name == _ALL and marker != "<function=":
            self._held = None
            if self._blank is not None:
                self._blank = []  # what stood before it belongs to the markup
            return
        if not self._schemas or not self._may_be(name):
            raise Broken  # without tools there is an answer alone
        if marker != "<function=" and (yield from self._space()) != "{":
            raise Broken  # code, of a tool that the server has not
        self._begin(name)
        yield from self._space()
        yield from self._json(self._arguments)
        self._close()
