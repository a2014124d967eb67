"""Shows the doctests of docstrings as code."""

import re

import griffe


class Fenced(griffe.Extension):
    def on_object(self, *, obj, **_others):
        if obj.docstring:
            block = re.compile(r"^>>>.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
            fence = "```pycon\n\\g<0>\n```"
            obj.docstring.value = block.sub(fence, obj.docstring.value)
