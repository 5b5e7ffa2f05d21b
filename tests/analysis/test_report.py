"""The report: one file, and what a real browser makes of it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from browser import Visit, browser
from expire_span import AdaptiveSpan, Compressive, FixedSpan
from expire_span.analysis.counterfactual import Replacement, counterfactual
from expire_span.analysis.recording import NOT_YET, record_tokens
from expire_span.analysis.report import Report, fill, script_json, write_report
from reading_models import reading_subject

TEXT = "Egypt is <b>not</b> &amp; the café of Egypt;\n== 1869 ==\n</script> @style@ \u2028\n" * 4


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


def report_of(subject, text, path, replacement=None):
    recording = record_tokens(subject.model, subject.codec.encode(text), name=subject.name)
    versions = [counterfactual(subject, text, replacement, recording)] if replacement else []
    return recording, f"file://{write_report(Report(subject, recording, versions), path)}"


def test_a_report_holds_the_text_and_all_numbers(tmp_path):
    recording, _ = report_of(reading_subject(), TEXT, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 2  # none of the text's own
    data = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    version = data["versions"][0]
    assert "".join(version["pieces"]) == TEXT
    assert version["capacity"] == recording.steps
    assert "http://" not in page.split("<script id")[0]


def test_templates_are_filled_once():
    assert fill("@a@-@b@-@a@", {"a": "@b@", "b": "2"}) == "@b@-2-@b@"
    assert json.loads(script_json({"x": "</script>"})) == {"x": "</script>"}
    assert "<" not in script_json("</script>")


def test_the_report_in_a_browser(chromium, tmp_path):
    recording, url = report_of(reading_subject(), TEXT, tmp_path / "report.html")
    visit = Visit(chromium, url)
    page = visit.page
    assert page.locator(".text").text_content() == TEXT
    mean = visit.classes()
    assert len(set(mean)) > 5
    shades = page.eval_on_selector_all(
        ".text b", "found => found.map(b => getComputedStyle(b).backgroundColor)"
    )
    assert len(set(shades)) > 5
    visit.shoot("report-light")

    page.get_by_label("Layer").select_option("1")
    visit.settle()
    second = visit.classes()
    assert second != mean

    time = 120
    page.get_by_label("Steps read").fill(str(time))
    visit.settle()
    classes = visit.classes()
    forgotten = [n for n, names in enumerate(classes) if "gone" in names.split()]
    assert forgotten == forgotten_by(recording, 1, time)
    assert forgotten
    assert all(("unread" in names.split()) == (n >= time) for n, names in enumerate(classes))
    assert f"{len(forgotten)} forgotten" in page.locator("output").text_content()
    visit.shoot("report-forgetting")
    page.get_by_role("button", name="All spans").click()
    visit.settle()
    assert visit.classes() == second
    visit.close()


def forgotten_by(recording, layer, time):
    """Places of all that has no weight left, or is deleted, once `time` steps are read."""
    places = np.arange(time)
    over = time - places - recording.spans[layer, 0, :time] >= recording.about.ramp
    deleted = recording.deleted[layer, 0, :time]
    return places[over | ((deleted != NOT_YET) & (deleted <= time))].tolist()


def test_the_report_by_keyboard_and_pointer(chromium, tmp_path):
    recording, url = report_of(reading_subject(), TEXT, tmp_path / "report.html")
    visit = Visit(chromium, url, color_scheme="dark")
    page, facts = visit.page, visit.page.locator(".facts")
    page.locator(".text").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert facts.locator("h3").text_content() == "y"
    row = facts.locator("tbody tr").nth(0).locator("td").all_text_contents()
    assert row[1] == f"{recording.spans[0, 0, 2]:.0f}"
    assert row[2] == f"{2 + recording.spans[0, 0, 2]:.0f}"
    assert f"{recording.loss[0, 1] / np.log(2):.2f} bits" in facts.text_content()
    page.keyboard.press("ArrowDown")
    assert facts.locator("h3").text_content() != "y"
    page.keyboard.press("Enter")
    visit.settle()
    assert any("unread" in names for names in visit.classes())
    page.keyboard.press("Escape")
    visit.settle()
    assert not any("unread" in names for names in visit.classes())
    page.locator(".text b").nth(0).hover()
    assert facts.locator("h3").text_content() == "E"
    visit.shoot("report-dark")
    page.get_by_role("button", name="Switch to light colours").click()
    assert page.locator("html").get_attribute("data-theme") == "light"
    visit.close()


def test_versions_stand_side_by_side(chromium, tmp_path):
    subject = reading_subject()
    _, url = report_of(subject, TEXT, tmp_path / "r.html", Replacement("Egypt", "somewhere"))
    visit = Visit(chromium, url, viewport={"width": 1500, "height": 900})
    page = visit.page
    assert page.locator(".view").count() == 2
    changed = page.locator(".text").nth(1).locator("b.changed").all_text_contents()
    assert "".join(changed) == "somewhere" * TEXT.count("Egypt")
    page.get_by_label("Shade by").nth(1).select_option("change")
    visit.settle()
    assert any(names.startswith("d") for names in visit.classes())
    visit.shoot("report-versions")
    page.get_by_label("Layer").nth(0).select_option("0")  # both views follow
    assert page.get_by_label("Layer").nth(1).input_value() == "0"
    visit.close()


@pytest.mark.parametrize(
    "memory", [FixedSpan(20), AdaptiveSpan(40, 4, initial=0.5), Compressive(16, 2, 4)]
)
def test_other_memories_have_reports_too(chromium, tmp_path, memory):
    _, url = report_of(reading_subject(memory), TEXT, tmp_path / "report.html")
    visit = Visit(chromium, url)
    visit.page.get_by_label("Steps read").fill("100")
    visit.settle()
    assert any("gone" in names for names in visit.classes())
    visit.close()


def test_what_is_pooled_is_not_yet_forgotten(chromium, tmp_path):
    recording, url = report_of(reading_subject(Compressive(16, 2, 4)), TEXT, tmp_path / "r.html")
    visit, time = Visit(chromium, url), 100
    visit.page.get_by_label("Layer").select_option("0")
    visit.page.get_by_label("Steps read").fill(str(time))
    visit.settle()
    deleted, pooled = recording.deleted[0, 0, :time], recording.pooled[0, 0, :time]
    there = (deleted == NOT_YET) | (deleted > time)
    partly = there & (pooled != NOT_YET) & (pooled <= time)
    assert partly.any()
    fading = ["fading" in names.split() for names in visit.classes()[:time]]
    np.testing.assert_array_equal(fading, partly)
    assert "part of a mean" in visit.page.locator(".legend").text_content()
    visit.close()


def test_the_spans_of_heads_are_told(chromium, tmp_path):
    subject = reading_subject(AdaptiveSpan(40, 4, initial=0.5))
    recording, url = report_of(subject, TEXT, tmp_path / "report.html")
    visit = Visit(chromium, url)
    assert "heads" not in visit.page.locator(".legend").text_content()
    visit.page.get_by_label("Layer").select_option("1")
    visit.settle()
    told = ", ".join(f"{span:.0f}" for span in recording.head_spans[1])
    assert f"its heads look back {told} steps" in visit.page.locator(".legend").text_content()
    visit.close()


def tiled(recording, times):
    """The same recording over and over: what a page does with it depends on its length alone."""
    steps = recording.steps
    by_step = ("tokens", "targets", "loss", "starts", "spans", "deleted", "pooled")
    parts = {name: np.concatenate([getattr(recording, name)] * times, -1) for name in by_step}
    later = np.repeat(np.arange(times) * steps, steps)
    parts["deleted"] = np.where(parts["deleted"] < 0, NOT_YET, parts["deleted"] + later)
    return replace(recording, **parts)


def test_a_long_text_stays_light(chromium, tmp_path):
    subject = reading_subject(block=256)
    once = (TEXT * 30)[:2000]
    recording = record_tokens(subject.model, subject.codec.encode(once), name="long")
    url = f"file://{write_report(Report(subject, tiled(recording, 50)), tmp_path / 'long.html')}"
    text = once * 50
    assert len(text) == 100_000
    visit = Visit(chromium, url)
    page = visit.page
    assert page.locator(".text").text_content() == text
    assert page.locator(".text b").count() < 20_000  # a tenth of all is in sight or near it
    page.locator(".text").focus()
    page.keyboard.press("Control+End")
    visit.settle()
    assert "cursor" in visit.classes()[-1]
    assert page.locator(".text b").count() < 20_000
    page.get_by_label("Steps read").fill("99000")
    page.get_by_label("Layer").select_option("0")
    visit.settle()
    assert "unread" in visit.classes()[-1]
    visit.shoot("report-long")
    visit.close()
