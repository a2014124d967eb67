"""The remarks below the tables of a model's page."""

from prooflops.model.flop_difference import StepFlops
from prooflops.model.sections import Section, rule_remark


def test_a_rule_says_of_which_flops_it_is_so_far_off() -> None:
    flops = StepFlops(100, 10, "tokens", 2000, 4500, 0, 500, (), {}, 0, 0, 0, {})
    assert rule_remark(flops, "forward") == "2ND is exactly the model FLOPs (+0)"
    assert rule_remark(flops, "step") == "6ND is exactly the model FLOPs (+0), 7.7% below the executed FLOPs"


def test_a_section_fits_the_terminal_with_its_text_column_flush_left() -> None:
    section = Section("t", [["what", "why"], ["a", "one two three four"]], ["a remark of five words"], text_column=True)
    assert section.lines() == ["what  why", "a     one two three four", "a remark of five words"]
    assert section.lines(16) == ["what  why", "a     one two", "      three four", "a remark of five", "  words"]
