"""The public projects whose own benchmarks the gate is tried on, and the slowdowns that are planted into them.

Each is taken as it is, at one commit. Compiled extensions are not rebuilt for the other side of a comparison, so
projects that have them are run in their pure Python form.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Project:
    """A repository, how its benchmarks are run, and what is planted. Functions are written file:qualified name."""

    url: str
    commit: str
    suite: tuple[str, ...]  # arguments of pytest
    path: str  # what goes on PYTHONPATH, relative to the repository
    # A function, and the statements at its beginning: about 5 % of what its benchmarks take. Empty: no such trial.
    slight: dict[str, str] = field(default_factory=dict)
    twice: tuple[str, ...] = ()  # functions that do their work twice; likewise
    packages: tuple[str, ...] = ()  # besides pytest-benchmark and what the gate needs
    environment: dict[str, str] = field(default_factory=dict)


PROJECTS = {
    "cattrs": Project(
        url="https://github.com/python-attrs/cattrs",
        commit="82b02c07ca535a1ba656b935767d819eac9d383b",
        suite=("bench",),
        path="src",
        slight={"src/cattrs/converters.py:BaseConverter.unstructure": "isinstance(obj, str)"},
        twice=(
            "src/cattrs/converters.py:BaseConverter.unstructure",
            "src/cattrs/converters.py:BaseConverter.structure",
        ),
        packages=("attrs>=25.4", "typing-extensions>=4.14", "msgspec>=0.21.1", "orjson>=3.11.3"),
    ),
    "pluggy": Project(
        url="https://github.com/pytest-dev/pluggy",
        commit="e382e72789f8d791991c489d4322aa04e660b952",
        suite=("testing/benchmark.py",),
        path="src",
        slight={"src/pluggy/_callers.py:_multicall": "[isinstance(each, object) for each in hook_impls]"},
        twice=("src/pluggy/_hooks.py:varnames",),  # not `_multicall`, on which pytest itself runs
    ),
    "multidict": Project(
        url="https://github.com/aio-libs/multidict",
        commit="41c1b9144b13dcdfa4c18085aedc874cc9d24006",
        suite=("tests/test_multidict_benchmarks.py", "tests/test_views_benchmarks.py", "--no-c-extensions", "--no-cov"),
        path=".",
        slight={"multidict/_multidict_py.py:_HtKeys.iter_hash": "isinstance(hash_, int)"},
        twice=("multidict/_multidict_py.py:MultiDict.getone",),
        packages=("pytest-codspeed==5.0.3", "pytest-cov==7.1.0", "objgraph==3.6.2", "psutil==7.2.2"),
        environment={"MULTIDICT_NO_EXTENSIONS": "1"},
    ),
    "yarl": Project(
        url="https://github.com/aio-libs/yarl",
        commit="7009e844cec7959e73741102ceadff49ed914291",
        suite=("tests/test_quoting_benchmarks.py", "tests/test_url_benchmarks.py", "--no-cov", "--numprocesses=0"),
        path=".",
        slight={"yarl/_quoting_py.py:_Quoter.__call__": "[each for each in val or '']"},
        twice=("yarl/_quoting_py.py:_Quoter.__call__",),
        packages=(
            "pytest-codspeed==5.0.3", "pytest-cov==7.1.0", "pytest-xdist>=3.8", "idna>=2.0", "multidict>=4.0",
            "propcache>=0.2.1",
        ),
        environment={"YARL_NO_EXTENSIONS": "1"},
    ),
    "pint": Project(
        url="https://github.com/hgrecco/pint",
        commit="20e3dd37ac46acae0fd7aaef144869acf03c4787",
        suite=("pint/testsuite/benchmarks/test_30_numpy.py",),
        path=".",
        slight={"pint/facets/plain/quantity.py:PlainQuantity._mul_div": "self._get_non_multiplicative_units()"},
        twice=("pint/facets/plain/quantity.py:PlainQuantity._add_sub",),
        packages=("platformdirs>=2.1", "typing_extensions>=4.0", "flexcache>=0.3", "flexparser>=0.4"),
    ),
    "fastjsonschema": Project(
        url="https://github.com/horejsek/python-fastjsonschema",
        commit="8a7cde990f1fa5404e4d750cc4ebde28ea398f5c",
        suite=("tests/benchmarks",),
        path=".",
    ),
    "propcache": Project(
        url="https://github.com/aio-libs/propcache",
        commit="334a3ae71c32e6c217c1d3ce5365529ebc79d1e1",
        suite=("tests/test_benchmarks.py", "--no-cov"),
        path="src",
        twice=("src/propcache/_helpers_py.py:under_cached_property.__get__",),
        packages=("pytest-codspeed==5.0.3", "pytest-cov==7.1.0", "pytest-xdist>=3.8"),
        environment={"PROPCACHE_NO_EXTENSIONS": "1"},
    ),
    "zeroconf": Project(
        url="https://github.com/python-zeroconf/python-zeroconf",
        commit="fce7094fc55d68f2f584df17cb7fd811cdea8b49",
        suite=("tests/benchmarks",),
        path="src",
        packages=("pytest-codspeed==5.0.3", "pytest-cov==7.1.0", "pytest-asyncio>=1.0", "ifaddr>=0.1.7"),
    ),
}  # fmt: skip
