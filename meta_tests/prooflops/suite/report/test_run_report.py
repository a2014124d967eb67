"""A record and the registry make the report of a run."""

from typing import Any

from prooflops.suite.registry import Registry
from prooflops.suite.report.run_report import RunReport, run_report
from prooflops.suite.verdicts import VERDICTS


def test_a_claim_has_what_the_registry_and_the_record_say_of_it(report: RunReport, registry: Registry) -> None:
    claim = next(each for each in report.claims if each.id == "amp.cuda-amp-api")
    row = registry.claims[claim.id]
    assert (claim.statement, claim.correction, claim.verdict) == (row.statement, row.correction, "corrected")
    assert [each["title"] for each in claim.sources] == [registry.sources[key].title for key in row.sources]
    assert claim.line == f"corrected: {claim.reason}"


def test_claims_are_counted_by_verdict_and_grouped_by_topic(report: RunReport) -> None:
    assert [*report.counts] == [*VERDICTS]
    assert sum(report.counts.values()) == len(report.claims) == sum(map(len, report.topics.values()))


def test_the_run_is_named_by_its_command_and_revision(record: dict[str, Any], registry: Registry) -> None:
    run = {**record["prooflops"], "arguments": ["--quick"]}
    record = {**record, "commit_info": {"id": "abc", "dirty": True}, "prooflops": run}
    report = run_report(record, registry, [], partial="only -k 'a b'")
    assert (report.command, report.revision) == ("pytest --quick", "abc with uncommitted changes")
    assert report.partial == "only -k 'a b'"
    assert report.methods == ("2",)


def test_a_claim_that_the_registry_no_longer_has_is_shown_by_its_id(record: dict[str, Any], registry: Registry) -> None:
    gone = {**record["prooflops"]["verdicts"][0], "id": "gone.claim", "topic": "gone"}
    report = run_report({**record, "prooflops": {**record["prooflops"], "verdicts": [gone]}}, registry, [])
    assert [(each.id, each.topic, each.statement) for each in report.claims] == [("gone.claim", "gone", "")]
