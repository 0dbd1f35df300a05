"""What `tokenizer.ggml.pre` means: how a text is cut into words before bytes are merged.

A wrong cut gives other tokens than the model was trained with, and no error: a name that is not here is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..tokenizers.tokenizer_parts import byte_level, split_by


def characters(ranges: str) -> str:
    """Ranges of characters, of ranges of their numbers in hexadecimal."""
    return "".join("-".join(chr(int(end, 16)) for end in one.split("-")) for one in ranges.split())


ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN35 = ENDS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES
SEED = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACES
MINICPM5 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
UFAKZEKA = QWEN2.removeprefix(ENDS + "|")
EXAONE_MOE = (
    ENDS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
THREES = r"\d{1,3}(?=(?:\d{3})*\b)"  # digits from the last of a number on
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
START = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = f"{START}{UPPER}*{LOWER}+|{START}{UPPER}+{LOWER}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
GPT4O = (
    f"{START}{UPPER}*{LOWER}+{ENDS}?|{START}{UPPER}+{LOWER}*{ENDS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
)
NOT_HAN_UPPER, NOT_HAN_LOWER = (f"{kind[:-1]}&&[^\\p{{Han}}]]" for kind in (UPPER, LOWER))
KIMI = (
    r"[\p{Han}]+|"
    f"{START}{NOT_HAN_UPPER}*{NOT_HAN_LOWER}+{ENDS}?|{START}{NOT_HAN_UPPER}+{NOT_HAN_LOWER}*{ENDS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
)
FALCON = (  # digits are told from what is beside them when bytes are characters: some bytes then are digits, too
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    {"type": "Digits", "individual_digits": False},
    split_by("[0-9][0-9][0-9]"),
)
DEEPSEEK_ASCII = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
DEEPSEEK3 = DEEPSEEK_ASCII + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES
HAN_AND_KANA = f"[{characters('4E00-9FA5 3040-309F 30A0-30FF')}]+"
HAN_AND_HANGUL = f"[{characters('4E00-9FA5 800-4E00 AC00-D7FF')}]+"
LETTERS = (  # of DeepSeek V2, in hexadecimal: some that have two cases
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C "
    "38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B "
    "1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 "
    "1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 "
    "2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B "
    "2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 "
    "FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF "
    "1E900-1E943"
)
DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{characters(LETTERS)}]+",
    rf"\s?[!-/:-~{characters('FF01-FF0F FF1A-FF5E 2018-201F 3000-3002')}]+",
    r"\s+$",
    HAN_AND_HANGUL,
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_HANGUL)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


class PreTokenizer(NamedTuple):
    """What goes with a name."""

    pattern: str
    before: tuple[str, ...] = ()  # patterns by which texts are cut first
    digits: bool = False  # each digit is a word, before all else
    steps: tuple[dict[str, Any], ...] = ()  # in place of all those: as the model's own tokenizer.json has them
    normal_form: bool = False  # texts are brought to Unicode's form C
    whole_words: bool = False  # a word that is a token is not merged from its bytes
    begins: bool = False  # with the token of beginning, where the file does not say


LLAMA3_NAMES = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
LLAMA3_LIKE = PreTokenizer(LLAMA3, whole_words=True, begins=True)
DIGITS = PreTokenizer(GPT2, digits=True)
DEEPSEEK3_LIKE = PreTokenizer(DEEPSEEK3, before=(r"\p{N}{1,3}", HAN_AND_KANA))
BY_NAME = {
    **dict.fromkeys(LLAMA3_NAMES, LLAMA3_LIKE),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer(LLAMA3, whole_words=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer(LLAMA3)),
    **dict.fromkeys(("qwen2", "f2llmv2"), PreTokenizer(QWEN2, normal_form=True)),
    "qwen35": PreTokenizer(QWEN35, normal_form=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2"), PreTokenizer(QWEN2)),
    **dict.fromkeys(("kormo", "solar-open"), PreTokenizer(QWEN2)),
    "minicpm5": PreTokenizer(MINICPM5, before=(r"\p{N}{1,3}",), whole_words=True),
    "ufakzeka": PreTokenizer(UFAKZEKA),
    "exaone-moe": PreTokenizer(EXAONE_MOE),
    **dict.fromkeys(("gpt-2", "olmo", "phi-2", "jais", "mpt", "exaone4"), PreTokenizer(GPT2)),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum", "trillion", "granite-docling"), PreTokenizer(GPT2)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), DIGITS),
    "mellum2": DIGITS,
    "tekken": PreTokenizer(TEKKEN, whole_words=True, begins=True),
    "seed-coder": PreTokenizer(SEED),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"), PreTokenizer(GPT4O)),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreTokenizer(GPT4O, before=(THREES,))),
    "kimi-k2": PreTokenizer(KIMI),
    "falcon": PreTokenizer(GPT2, steps=FALCON),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), PreTokenizer(BLOOM)),
    "viking": PreTokenizer(r"\p{N}", before=(BLOOM,)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer(BAILING)),
    "deepseek-llm": PreTokenizer(r"\p{N}", before=DEEPSEEK),
    "deepseek-coder": PreTokenizer(r"\p{N}", before=DEEPSEEK_CODER),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), DEEPSEEK3_LIKE),
}


def pre_tokenizer(kind: PreTokenizer) -> dict[str, Any]:
    """As tokenizer.json has it."""
    if kind.steps:
        return {"type": "Sequence", "pretokenizers": [*kind.steps]}
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if kind.digits else []
    patterns = (*kind.before, kind.pattern)
    return {"type": "Sequence", "pretokenizers": [*steps, *map(split_by, patterns), byte_level()]}
