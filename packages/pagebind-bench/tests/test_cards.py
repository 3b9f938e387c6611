"""Model cards: bytes as one works them out by hand from the public configurations, and what is refused."""

import pytest
from pagebind.errors import InvalidArgument
from pagebind_bench.replay.cards import card_names, load_card, parse_card

SOUND = """
source = "here"
layers = 3
kv_dtype = "bfloat16"
[full]
layers = 2
kv_heads = 1
head_dim = 5
[state]
layers = 1
parts = [{name = "s", shape = [3, 5], dtype = "float32"}]
"""


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("llama-3.1-8b", {"full": 16 * 2 * 32 * 8 * 128 * 2}),
        ("gemma-3-27b", {"full": 16 * 2 * 10 * 16 * 128 * 2, "window": 16 * 2 * 52 * 16 * 128 * 2}),
        ("gpt-oss-20b", {"full": 16 * 2 * 12 * 8 * 64 * 2, "window": 16 * 2 * 12 * 8 * 64 * 2}),
        (
            "qwen3-next-80b-a3b",
            {"full": 16 * 2 * 12 * 2 * 256 * 2, "state": 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)},
        ),
        (
            "phi-4-mini-flash",
            {
                "full": 16 * 2 * 1 * 20 * 64 * 2,
                "window": 16 * 2 * 8 * 20 * 64 * 2,
                "state": 9 * (5120 * 4 + 5120 * 16) * 2,
            },
        ),
    ],
)
def test_page_bytes_are_those_of_the_public_configuration(name, right):
    assert load_card(name).page_bytes(16) == right


def test_every_card_is_sound_and_there_is_one_of_each_composite():
    kinds = {load_card(name).kinds.names for name in card_names()}
    assert kinds == {("full",), ("full", "window"), ("full", "state"), ("full", "window", "state")}


def test_page_bytes_are_rounded_up_so_that_pages_can_move():
    # 2 layers, K and V, 5 cells of 2 bytes: 40 a token; a state of 60.
    assert parse_card("x", SOUND).page_bytes(1) == {"full": 48, "state": 64}


def test_a_card_of_ones_own_is_read_by_its_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SOUND)
    assert load_card(str(path)) == parse_card("mine", SOUND)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        load_card(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("layers = 3", "layers = 4", "not all 4"),
        ("head_dim = 5", "head_dim = 0", "full.head_dim"),
        ("head_dim = 5", "head_dim = 5\nheaddim = 5", "full.headdim"),
        ("bfloat16", "bfloat15", "kv_dtype"),
        ("shape = [3, 5]", "shape = []", "state.parts.0.shape"),
        ("[full]", "[full", "card 'x' is not sound"),
    ],
)
def test_a_card_that_is_not_sound_is_refused_by_field(old, new, told):
    with pytest.raises(InvalidArgument, match=told):
        parse_card("x", SOUND.replace(old, new))


def test_a_name_that_no_card_has_is_refused():
    with pytest.raises(InvalidArgument, match=r"'lama-3.1-8b' does not exist; did you mean 'llama-3.1-8b'"):
        load_card("lama-3.1-8b")
