"""What a registry file must say, and by what message another one is refused."""

from pathlib import Path

import pytest

from prooflops.suite.registry import RegistryError, load_registry

GOOD = {"id": '"demo.it"', "statement": '"It is."', "sources": '["s"]', "written": '"holds"', "kind": '"number"'}
SOURCE = '[[source]]\nkey = "s"\ntitle = "A source"\n'


def registry_file(folder: Path, **changes: str) -> Path:
    rows = {**GOOD, **changes}
    lines = "\n".join(f"{key} = {value}" for key, value in rows.items() if value)
    (folder / "demo.toml").write_text(f"{SOURCE}[[claim]]\n{lines}\n")
    return folder


def test_a_registry_is_read_with_its_sources(tmp_path: Path) -> None:
    registry = load_registry(registry_file(tmp_path))
    assert list(registry.claims) == ["demo.it"]
    assert registry.describe("demo.it") == "demo.it: It is.\nsource: A source"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"statement": ""}, "lacks statement"),
        ({"colour": '"red"'}, "unknown keys ['colour']"),
        ({"id": '"other.it"'}, "id must begin with the file's topic, demo."),
        ({"written": '"maybe"'}, "written must be one of holds, holds-if, wrong, got 'maybe'"),
        ({"kind": '"rumour"'}, "kind must be one of formula"),
        ({"written": '"holds-if"'}, "a holds-if claim, and no other, states its condition"),
        ({"condition": '"it rains"'}, "a holds-if claim, and no other, states its condition"),
        ({"written": '"wrong"'}, "a wrong claim, and no other, states its correction"),
        ({"sources": '["t"]'}, "source must be one of s, got 't'; a new source gets a [[source]] in sources.toml"),
        ({"sources": '"s"'}, "sources must be a list of texts, got 's'"),
        ({"needs": "[1]"}, "needs must be a list of texts, got (1,)"),
        ({"on_record": '"yes"'}, "on_record must be true or false, got 'yes'"),
        ({"sources": "[]"}, "it has no source"),
        ({"statement": '" "'}, "it has no statement"),
        ({"kind": "number"}, "demo.toml"),  # no TOML
    ],
)
def test_a_bad_registry_row_is_refused_by_file_and_reason(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    with pytest.raises(RegistryError) as error:
        load_registry(registry_file(tmp_path, **changes))
    assert said in str(error.value)
    assert str(tmp_path / "demo.toml") in str(error.value)


def test_a_claim_or_source_may_stand_only_once(tmp_path: Path) -> None:
    file = registry_file(tmp_path) / "demo.toml"
    text = file.read_text()
    file.write_text(text + text.removeprefix(SOURCE))
    with pytest.raises(RegistryError, match=r"claim 'demo.it' is there twice"):
        load_registry(tmp_path)
    file.write_text(SOURCE + text)
    with pytest.raises(RegistryError, match=r"source 's' is there twice"):
        load_registry(tmp_path)
