"""A repo that knows nothing of the gate, and has options of its own by the suite's names."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--device", default="none")
    parser.addoption("--model", default="small")


@pytest.fixture
def device(request):
    return request.config.getoption("--device")
