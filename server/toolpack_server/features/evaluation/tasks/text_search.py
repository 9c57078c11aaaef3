"""Search of an agent's text for expected numbers, dates and words.

A text is split into tokens: numbers, dates, times, words, codes such as `GO-2380`, and single signs such as `%`. Case,
punctuation, currency signs and Markdown are ignored. Numbers are compared by value, so `5,200.00` matches 5200, but
`95200` and `-5200` don't. Numbers can have the English form, with a comma between thousands, or another unambiguous
form: `5 200`, `5.200,00`, `64,50`.

The text is untrusted, so all patterns run in time proportional to its length.
"""

import calendar
import re
import unicodedata
from collections.abc import Iterator
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Scripts without spaces between words, or with suffixes joined to words. Each of their characters is a token."""

_LETTERS = rf"(?:(?![{_NO_SPACES}])[^\W\d_])+"
_SILENT = frozenset(" \t.,;:!?\"'()[]{}<>*_`#|\\…“”\u2018\u2019„«»¿¡€$£¥₹")

_GROUPED = r"[1-9]\d{0,2}(?:,\d{2,3})*,\d{3}(?:\.\d+)?"  # 5,200.00 and 1,00,000
_SPACED = r"[1-9]\d{0,2}(?:[ ']\d{3})+(?:[.,]\d+)?"  # 5 200,00 and 5'200.00
_POINTS = r"[1-9]\d{0,2}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})"  # 5.200,00 and 1.234.567
_PLAIN = r"\d+(?:[.,]\d+)?(?:e[+-]?\d{1,3})?|\.\d+"
_CURRENCY = r"(?:(?:[€$£¥₹]|(?:eur|usd|gbp|chf|jpy)(?=[\s\d]))\s?)?"

_TOKEN = re.compile(
    rf"""
      (?P<date>\d{{4}}-\d\d-\d\d(?!\d|-\d))
    | (?P<time>\d{{1,2}}:\d\d(?::\d\d)?(?![\d:]\d?))
    | (?P<number>
        (?P<sign>(?<![\w)])(?:[-\u2013]|(?:minus|negative)\s)|\+)?
        {_CURRENCY}(?P<inner>(?<![\w)])-)?
        (?P<digits>{_GROUPED}|{_SPACED}|{_POINTS}|{_PLAIN})
        (?!\d|[.,:]\d|[ ']\d{{3}}(?!\d)|{_LETTERS}\d|-\d+-\d|_\w)
        (?:(?:st|nd|rd|th)(?![^\W_]))?
      )
    | (?P<word>{_LETTERS}(?:'(?!s\b){_LETTERS})*(?![^\W_{_NO_SPACES}]|_\w|-\d))
    | (?P<code>(?:(?![{_NO_SPACES}])[^\W_])+(?:[-_./:@]+[^\W_]+|,\d+)*)
    | (?P<symbol>\S)
    """,
    re.VERBOSE,
)
_LIST = re.compile(r"(?<![\d,.])\d+(?:,\d+){2,}(?![.\d])")
_THOUSANDS = re.compile(_GROUPED)
_ALIASES = {"%": "percent", "&": "and"}
_SPELLINGS = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2007\u2009\u202f", " "),
        **dict.fromkeys("\u2010\u2011\u2212", "-"),  # two hyphens and the minus sign
        "\u2019": "'",
    }
)


class _Token(NamedTuple):
    """A token of a text. If two tokens are spellings of the same number or word, their values are equal."""

    begin: int
    end: int
    value: Any
    spellings: re.Pattern[str] | None = None  # other spellings of a date or a time, of one or more tokens


def says(text: str, *spellings: object) -> bool:
    """Return whether a text contains one of the given numbers, dates or phrases.

    Numbers are compared by value. Words must match as whole words, in the same order. Case and punctuation are ignored.
    A date, or a string such as `2026-03-05`, also matches `5 March`, and a time such as `14:45` matches `2:45 pm`.

    Args:
        text: A text that an agent wrote, such as `rollout.answer`.
        spellings: Alternatives. The function returns True if the text contains any of them.
    """
    plain = _plain(text)
    tokens = [*_tokens(plain)]
    return any(_has(plain, tokens, str(each)) for each in spellings)


def _has(text: str, tokens: list[_Token], spelling: str) -> bool:
    expected = [*_tokens(_plain(spelling))]
    if not expected:  # the spelling is only punctuation, which has no tokens
        return spelling.strip() != "" and spelling.strip() in text
    return any(_fits(text, tokens, index, expected) for index in range(len(tokens)))


def _fits(text: str, tokens: list[_Token], index: int, expected: list[_Token]) -> bool:
    """Return whether the tokens of the text from `index` on match the expected tokens, one after another."""
    for each in expected:
        if index >= len(tokens):
            return False
        token = tokens[index]
        other = each.spellings.match(text, token.begin) if each.spellings and token.value != each.value else None
        if other is None and token.value != each.value:
            return False
        end = other.end() if other else token.end
        # Another spelling can span several tokens, such as `5 March`, so continue with the first token after it.
        index = next((later for later in range(index + 1, len(tokens)) if tokens[later].begin >= end), len(tokens))
    return True


def _plain(text: str) -> str:
    """Normalize letters, hyphens and spaces, and separate the numbers of lists such as `1,2,3`."""
    plain = unicodedata.normalize("NFC", text).translate(_SPELLINGS).casefold()
    plain = re.sub(r"(?<=\d)t(?=\d\d:\d\d)", " ", plain)  # 2026-03-05T10:00
    return _LIST.sub(lambda match: match[0] if _THOUSANDS.fullmatch(match[0]) else match[0].replace(",", ", "), plain)


def _tokens(plain: str) -> Iterator[_Token]:
    """Yield the tokens of a normalized text. Skip punctuation."""
    for match in _TOKEN.finditer(plain):
        kind, text = match.lastgroup or "", match[0]
        begin, end = match.span()
        if match["number"] is not None:
            yield _Token(begin, end, _number(match))
        elif kind == "date":
            yield _Token(begin, end, text, _spoken_date(text))
        elif kind == "time":
            yield _time(begin, end, text)
        elif kind != "symbol" or text not in _SILENT:
            yield _Token(begin, end, _ALIASES.get(text, text))


def _number(match: re.Match[str]) -> Decimal:
    """Parse a number in any of the supported forms, such as `5,200.00` or `5.200,00`."""
    digits = match["digits"]
    if re.fullmatch(_GROUPED, digits):
        digits = digits.replace(",", "")
    elif re.fullmatch(_POINTS, digits):
        digits = digits.replace(".", "")
    digits = digits.replace(" ", "").replace("'", "").replace(",", ".")
    negative = (match["sign"] or "+") != "+" or match["inner"]
    try:
        return Decimal(f"-{digits}" if negative else digits)
    except InvalidOperation:  # characters that match \d but that Decimal can't read
        return Decimal("NaN")


def _spoken_date(text: str) -> re.Pattern[str] | None:
    """Return a pattern for other spellings of an ISO date, such as `5 March`, or None if the date doesn't exist."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    name = calendar.month_name[day.month].casefold()
    month, number = rf"(?:{name}|{name[:3]})(?![^\W_])\.?", rf"0?{day.day}(?:st|nd|rd|th)?"
    year, short = rf"{day.year}", rf"(?:{day.year}|{day.year % 100:02})"
    no_other_year = rf"(?!,?\s+(?!{year})\d{{4}}(?![\d,.:]\d))"  # the text can omit the year, but not name another year
    # Day and month can stand in both orders, because the text doesn't say which order its author uses.
    forms = [
        rf"{number}\.?(?:\s+of)?[\s-]+{month}{no_other_year}(?:,?\s+{year})?",
        rf"{month}\s+(?:the\s+)?{number}(?![^\W_]){no_other_year}(?:,?\s+{year})?",
        rf"0?{day.day}\.\s?0?{day.month}\.(?:\s?{short}(?!\d))?(?!\d)",
        rf"{day.day:02}\.{day.month:02}(?!\.?\d)",
        rf"0?{day.month}/0?{day.day}(?:/{short})?(?![\d/])",
        rf"0?{day.day}/0?{day.month}(?:/{short})?(?![\d/])",
        rf"{year}[/.]0?{day.month}[/.]0?{day.day}(?!\d)",
    ]
    return re.compile("|".join(forms))


def _time(begin: int, end: int, text: str) -> _Token:
    """Return the token of a 24-hour time such as `14:45`, with a pattern for its 12-hour spellings."""
    hour, minute, *second = text.split(":")
    value = f"{int(hour)}:{minute}" + "".join(f":{each}" for each in second if int(each))
    if value.count(":") > 1 or int(hour) > 23 or int(minute) > 59:  # noqa: PLR2004 - hours and minutes of a clock
        return _Token(begin, end, value)
    half, of_day = ("a", "morning") if int(hour) < 12 else ("p", "(?:afternoon|evening)")  # noqa: PLR2004 - as above
    minutes = rf"(?:[:.]{minute})" + ("?" if int(minute) == 0 else "")
    spoken = rf"0?{int(hour) % 12 or 12}{minutes}\s*(?:{half}\.?m\b\.?|in the {of_day}\b)"
    return _Token(begin, end, value, re.compile(spoken))
