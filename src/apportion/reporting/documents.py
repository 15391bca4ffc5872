"""The documents that people must hand in, each made of the facts of one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.extras import require_extra
from apportion.reporting.export import require_suffix
from apportion.reporting.run_facts import RunFacts, read_facts

SUFFIXES = {"html": ".html", "nist": ".json", "registry": ".json", "card": ".md"}
"""Every form of a document, with how its file ends."""


def write_statement(run: Any, path: Path | str, form: str = "html") -> Path:
    """Write a document about one private run, and return its path.

    Args:
        run: what `train` gives back, or the folder of a run.
        path: of the file; it ends in .html, .json or .md, as the form has it.
        form: "html", one page to print and sign; "nist", answers by the components of NIST SP 800-226; "registry", a draft for the public
            registry of deployments; "card", a model card.

    Source:
        NIST SP 800-226 (2025); opendp/deployments-registry-data; Mitchell et al. 2019 for model cards.

    Guarantee:
        everything in it is in the run's own statement and configuration, which are public. What the run cannot know is a field that says
        who must fill it in.

    Examples:
        apportion.write_statement(run, "statement.html")
    """
    target = Path(path)
    text = format_statement(run, form)
    require_suffix("path", target, (SUFFIXES[form],))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        reason = f"it cannot be written: {error.strerror}"
        raise InvalidArgument("path", str(target), reason, "Choose a place that can be written to") from None
    return target


def format_statement(run: Any, form: str = "html") -> str:
    """The text of the document."""
    make = _FORMS[validate.known("form", form, _FORMS)]
    facts = read_facts(run)
    try:
        return make(facts)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        reason = f"its statement or configuration is not as `Run.save` writes it ({type(error).__name__}: {error})"
        raise InvalidArgument("run", facts.name or "the run", reason, "Restore the folder public/") from None


def _make_page(facts: RunFacts) -> str:
    require_extra("report", "jinja2")
    from apportion.reporting.statement_page import make_statement_page

    return make_statement_page(facts)


def _make_nist(facts: RunFacts) -> str:
    from apportion.reporting.statement_nist import make_nist_answers

    return _as_json(make_nist_answers(facts))


def _make_registry(facts: RunFacts) -> str:
    from apportion.reporting.statement_registry import make_registry_entry

    return _as_json(make_registry_entry(facts))


def _make_card(facts: RunFacts) -> str:
    from apportion.reporting.model_card import make_model_card

    return make_model_card(facts)


def _as_json(content: Any) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


_FORMS: dict[str, Callable[[RunFacts], str]] = {
    "html": _make_page,
    "nist": _make_nist,
    "registry": _make_registry,
    "card": _make_card,
}
