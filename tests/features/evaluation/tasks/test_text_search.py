"""The function `says` of evaluators: it finds numbers and words in an answer, in any spelling.

A number or a word inside a longer one doesn't count.
"""

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpack_server import says


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        *((text, "5200") for text in ("5200.00", "It is 5,200.00 euros.", "€5200", "5200€", "EUR5200", "(5,200)")),
        *((text, "5200.00") for text in ("5 200,00 €", "5.200,00 EUR", "5'200", "**5200**", "- 5200", "5200.-")),
        *((text, "-5200") for text in ("-5,200.00", "\u22125200", "-$5,200", "$-5,200", "minus 5200")),
        ("64,50 €", "64.5"),
        ("1,00,000", "100000"),
        ("from 8-10", "10"),
        ("1,2,3", "2"),
        ("3 %", "3 percent"),
        ("答案是5200元", "5200"),
        ("24th", "24"),
        *((text, "2026-03-05") for text in ("5 March", "March 5th, 2026", "the 5th of March", "5.3.", "03/05")),
        *((text, "18:36") for text in ("18:36h", "6:36 pm", "6.36 p.m.", "18:36:00")),
        ("08:00-10:00", "8:00"),
        ("AURORA's wish", "aurora"),
        ("Bill GO-2380.", "go-2380"),
        ("rent; Deichweg 3", "Rent, Deichweg 3"),
        ("The Dishes? 1000 TIMES!", "1,000 times"),
        ("C++", "C++"),
    ],
)
def test_says_accepts_other_spellings(text, spelling):
    assert says(text, spelling)


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        *((text, "5200") for text in ("95200.00", "-5200.00", "52001", "5200.5", "95,200", "1.5200", "\u20135200")),
        *((text, "5200") for text in ("-€5200", "minus 5200", "5200e3", "A5200", "SE-5200", "5.200.000", "x_5200", "")),
        ("93625 euros", "3625"),
        ("95 200", "200"),
        *((text, "2026-03-05") for text in ("5 March 2025", "15 March", "March 51")),
        *((text, "18:36") for text in ("6:36 am", "118:36", "18:361")),
        ("unknown", "known"),
        ("yesterday", "yes"),
        ("can't", "can"),
        ("2026-03-05", "5"),
        ("C", "C++"),
    ],
)
def test_says_rejects_words_and_numbers_inside_others(text, spelling):
    assert not says(text, spelling)


def test_numbers_and_dates_may_be_passed_as_objects():
    assert says("5,200.00 on 5 March at 2:45 pm", 5200)
    assert says("64.50", Decimal("64.5"), "none")
    assert says("5 March", dt.date(2026, 3, 5))
    assert says("2:45 pm", dt.time(14, 45))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9))
def test_number_is_matched_only_by_its_own_spellings(number):
    assert says(f"It is {number:,} euros.", number)
    assert says(f"{number}", f"{number:,}")
    assert says(f"9{abs(number)}", number) == (number >= 0 and f"9{number}" == f"{number}")
    assert number == 0 or not says(f"{-number:,}", number)


@given(st.text(alphabet="15 ,.:-'_aZé$€一"), st.text(alphabet="15 ,.:-'a%"))
def test_says_accepts_any_text_and_any_spelling(text, spelling):
    assert says(text, spelling) in (True, False)
    assert says(text, text) == bool(text.strip())
