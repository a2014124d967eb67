"""verdicts.json has the form that its schema promises."""

import json
from dataclasses import replace

import pytest

from meta_tests.conftest import ROOT
from prooflops.suite.page.run_report import verdicts_json

SCHEMA = json.loads((ROOT / "prooflops/suite/page/verdicts.schema.json").read_text())


def test_a_run_is_written_as_the_schema_says(report):
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema, of the [dev] packages")
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    content = json.loads(verdicts_json(report))
    validator.validate(content)
    validator.validate(
        json.loads(verdicts_json(replace(report, partial="only x", duration_s=None)))
    )
    assert content["whole"]
    assert content["versions"]["torch"] == "2.13.0+cpu"
    assert not validator.is_valid({**content, "more": 1})
