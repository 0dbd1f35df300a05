"""How much of prompts a step may compute while others decode: so much that these get their next tokens in time.

A step with n decoding rows and p tokens of prompts takes about d(n) + c · p seconds: d is fitted to the last steps of
decoding alone (step_cost.py), c what a prompt's token took lately. c follows a rise at once, since
attention gets dearer from chunk to chunk of a long prompt, and slowly a fall, or what a few tokens say. With a target T
between two tokens the chunk is (T - d(n)) / c, but at least LEAST, so that prompts get on as well. Without a target a
step may take thrice as long as decoding alone, and LENIENT_S in any case: nobody sees that in a stream.

Where nobody decodes, the whole budget is the prompts'. All follows from the times that the worker reports.
"""

from __future__ import annotations

from .step_cost import StepCost

LEAST = 16  # tokens of prompts that every step may have
FIRST = 128  # as long as nothing was measured
THRICE = 3.0
LENIENT_S = 0.05
SLOWLY = 0.3  # of the way is gone with each step
SHORTEST_S = 1e-9  # to which what a token takes may fall: a target through less would be infinite


class ChunkSizePolicy:
    """Measures steps, and says how long the next chunk may be."""

    def __init__(self, budget: int, target_s: float | None) -> None:
        """`budget`: tokens of a step; `target_s`: seconds between two tokens of a stream, None: not said."""
        self.budget = budget
        self.target_s = target_s
        self.decoding = StepCost()
        self.prompt_token_s = 0.0
        self.encoder_token_s = 0.0  # of a picture's

    def observe(self, decoding: int, prompts: int, seconds: float, encoded: int = 0) -> None:
        """A step with so many decoding rows and so many tokens of prompts took so long; it made so many embeddings."""
        if encoded:  # or found them: then it was short, and says little
            found, known = max(seconds - self.expected(decoding, prompts), 0.0) / encoded, self.encoder_token_s
            self.encoder_token_s = found if found > known else _towards(known, found)
            return
        if not prompts:
            self.decoding.observe(decoding, seconds)
            return
        found, known = max(seconds - self._alone(decoding), 0.0) / prompts, self.prompt_token_s
        at_once = not known or (found > known and prompts >= LEAST)
        self.prompt_token_s = found if at_once else _towards(known, found)

    def expected(self, decoding: int, prompts: int) -> float:
        """Seconds of such a step; 0 as long as nothing is known."""
        return self._alone(decoding) + self.prompt_token_s * prompts

    def chunk(self, decoding: int) -> int:
        """Tokens of prompts that a step with so many decoding rows may have."""
        if not decoding:
            return self.budget
        if not self.prompt_token_s:
            return min(FIRST, self.budget)
        return min(self.budget, max(LEAST, int((self._target(decoding) - self._alone(decoding)) / self.prompt_token_s)))

    def encoder_tokens(self, decoding: int, prompts: int) -> int:
        """Embeddings of pictures that a step may make beside so many decoding rows and tokens of prompts."""
        if not self.encoder_token_s:
            return 0
        return max(0, int((self._target(decoding) - self.expected(decoding, prompts)) / self.encoder_token_s))

    def beside(self, decoding: int, encoded: int) -> int:
        """Tokens of prompts that such a step has time for while it makes so many embeddings."""
        left = self._target(decoding) - self._alone(decoding) - self.encoder_token_s * encoded
        if not self.prompt_token_s:
            return LEAST
        return min(self.budget, max(0, int(left / self.prompt_token_s)))

    def _target(self, decoding: int) -> float:
        if self.target_s is not None:
            return self.target_s
        return max(THRICE * self._alone(decoding), LENIENT_S)

    def _alone(self, decoding: int) -> float:
        return self.decoding.seconds(decoding)


def _towards(known: float, found: float) -> float:
    return max(min(known, SHORTEST_S), known + SLOWLY * (found - known))
