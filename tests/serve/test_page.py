"""The live page in a real browser."""

import random

import pytest

from browser import Visit, browser, served
from expire_span import FixedSpan
from expire_span.serve.limits import Limits
from reading_models import reading_subject

LIMITS = Limits(characters=2000, continuation=60)


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def url():
    subjects = {"one": reading_subject(name="one"), "two": reading_subject(FixedSpan(20), "two")}
    with served(subjects, LIMITS) as address:
        yield address


@pytest.fixture
def visit(chromium, url):
    opened = Visit(chromium, url)
    yield opened
    opened.close()


def shows(visit, text, place=0):
    """Wait until a view shows this text."""
    visit.page.wait_for_function(
        "([text, place]) => document.querySelectorAll('.text')[place]?.textContent === text",
        arg=[text, place],
    )
    visit.settle()


def test_an_edit_changes_the_spans(visit):
    page, editor = visit.page, visit.page.get_by_label("Text to be read")
    shows(visit, editor.input_value())
    before = visit.classes()
    editor.fill("somewhere " + editor.input_value())
    shows(visit, editor.input_value())
    after = visit.classes()
    assert len(after) == len(before) + len("somewhere ")
    assert after[len("somewhere ") :] != before
    assert "read in" in page.locator(".status").text_content()
    visit.shoot("live")
    editor.fill("")
    page.wait_for_function(
        "() => document.querySelector('.status').textContent.includes('nothing')"
    )


def test_too_long_a_text_is_refused_politely(visit):
    page, editor = visit.page, visit.page.get_by_label("Text to be read")
    text = editor.input_value()
    editor.fill("x" * 2001)
    page.wait_for_selector(".status.problem")
    assert "at most 2,000 can be read here" in page.locator(".status").text_content()
    assert page.locator(".text").text_content() == text  # what was there is still shown
    visit.shoot("live-too-long")
    editor.fill("short again")
    shows(visit, "short again")
    assert page.locator(".status.problem").count() == 0


def test_texts_and_models_are_compared(visit):
    page = visit.page
    shows(visit, page.get_by_label("Text to be read").input_value())
    page.get_by_role("button", name="Compare").click()
    editors = page.get_by_label("Text to be read")
    shows(visit, editors.nth(1).input_value(), 1)
    page.get_by_label("Model").nth(1).select_option("one")
    editors.nth(1).fill(editors.nth(0).input_value().replace("Cairo", "Paris"))
    shows(visit, editors.nth(1).input_value(), 1)
    second = page.locator(".text").nth(1)
    assert "".join(second.locator("b.changed").all_text_contents()) == "Paris"
    text = editors.nth(0).input_value()
    editors.nth(1).fill(text.replace("Egypt", "Humpty Dumpty"))
    shows(visit, editors.nth(1).input_value(), 1)
    changed = "".join(second.locator("b.changed").all_text_contents())
    # Which of the spaces around and in it is the old one cannot be told.
    assert changed.replace(" ", "") == "HumptyDumpty" * text.count("Egypt")
    page.get_by_label("Shade by").nth(1).select_option("change")
    visit.settle()
    assert any(names.startswith("d") for names in visit.classes())
    visit.shoot("live-compare")
    page.get_by_role("button", name="Compare").click()
    assert page.locator(".view").count() == 1


def test_texts_differ_where_words_were_put_in_or_taken_out(visit):
    chance = random.Random(4)
    for _ in range(200):
        one = [chance.choice("ab .") for _ in range(chance.randrange(30))]
        two = one[:]
        for _ in range(chance.randrange(4)):
            place = chance.randrange(len(two) + 1)
            two[place : place + chance.randrange(3)] = chance.choices("ab .", k=chance.randrange(3))
        found = visit.page.evaluate("([one, two]) => differing(one, two)", [one, two])
        made, here = [], 0
        for first, last, new_first, new_last in found:
            assert here <= first <= last
            made += one[here:first]
            assert len(made) == new_first
            made += two[new_first:new_last]
            here = last
        assert made + one[here:] == two
        assert (found == []) == (one == two)


def test_a_second_view_shows_what_the_first_does(visit):
    page = visit.page
    shows(visit, page.get_by_label("Text to be read").input_value())
    layers = page.locator("label", has_text="Layer").locator("select")
    layers.select_option("1")
    page.get_by_label("Steps read").fill("50")
    page.get_by_role("button", name="Compare").click()
    shows(visit, page.get_by_label("Text to be read").nth(1).input_value(), 1)
    assert layers.nth(1).input_value() == "1"
    assert page.get_by_label("Steps read").nth(1).input_value() == "50"


def test_a_continuation_is_written_and_makes_forget(visit):
    page, editor = visit.page, visit.page.get_by_label("Text to be read")
    text = editor.input_value()
    shows(visit, text)
    page.get_by_label("tokens").fill("60")
    page.get_by_role("button", name="Continue").click()
    page.wait_for_function("() => document.querySelector('.status').textContent === '60 written'")
    visit.settle()
    assert page.locator(".text").text_content().startswith(text)
    assert page.locator(".text b").count() == len(text) + 60
    assert any("gone" in names for names in visit.classes())
    assert editor.input_value() == page.locator(".text").text_content()
    visit.shoot("live-written")
