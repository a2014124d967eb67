"""The browser of the page's tests."""

from meta_tests.browser import browser
