import gzip
import json
from pathlib import Path

import pytest
from pagebind.errors import InvalidArgument
from pagebind_bench.replay.traces import Request, block_tokens, read_trace

NORMALISED = "arrival_ms,input_tokens,output_tokens,hash_ids\n0,10,3,\n2.5,7,0,4 5\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-01-31 23:59:59.9999999,5,2\n"
    "2024-02-01 00:00:00.0004999,6,3\n"
    "2024-02-01T00:00:01Z,7,4\n"
)
MOONCAKE = (
    '{"timestamp": 1000, "input_length": 9, "output_length": 4, "hash_ids": [8, 9]}\n'
    '{"timestamp": 4000, "input_length": 3, "output_length": 1, "hash_ids": []}\n'
)


def write(folder: Path, text: str, name: str = "trace.csv", packed: bool = False) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_every_form_is_told_by_its_content(tmp_path, packed):
    # The name says nothing: neither the form nor the packing is told by it.
    assert read_trace(write(tmp_path, NORMALISED, "a", packed)) == [Request(0, 10, 3), Request(2.5, 7, 0, (4, 5))]
    assert read_trace(write(tmp_path, MOONCAKE, "b", packed)) == [Request(0, 9, 4, (8, 9)), Request(3000, 3, 1)]
    azure = read_trace(write(tmp_path, AZURE, "c", packed))
    assert [request[1:3] for request in azure] == [(5, 2), (6, 3), (7, 4)]
    assert [request.arrival_ms for request in azure] == pytest.approx([0, 0.5, 1000.0001], abs=2e-3)


def test_requests_are_ordered_by_arrival_and_limited_in_file_order(tmp_path):
    path = write(tmp_path, "arrival_ms,input_tokens,output_tokens\n9,1,1\n5,2,1\n1,3,1\n")
    assert [request.input_tokens for request in read_trace(path)] == [3, 2, 1]
    assert read_trace(path, limit=2) == [Request(0, 2, 1), Request(4, 1, 1)]


def test_columns_may_come_in_any_order_with_others_between(tmp_path):
    path = write(tmp_path, "\ufeffoutput_tokens, model ,arrival_ms,input_tokens\n3,x,0,10\n")
    assert read_trace(path) == [Request(0, 10, 3)]


def test_a_field_may_exceed_what_csv_allows_by_default(tmp_path):
    ids = " ".join(map(str, range(40_000)))
    path = write(tmp_path, f"arrival_ms,input_tokens,output_tokens,hash_ids\n0,40000,1,{ids}\n")
    assert len(ids) > 131_072
    assert read_trace(path)[0].hash_ids == tuple(range(40_000))


HEAD = "arrival_ms,input_tokens,output_tokens,hash_ids\n0,1,1,\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("", ["is empty", "normalised CSV", "Azure's CSV", "Mooncake's JSONL"], id="empty"),
        pytest.param("arrival_ms,input_tokens,output_tokens\n", ["no request behind its header"], id="header-alone"),
        pytest.param(
            "arrival_ms,input_token,output_tokens\n0,1,1\n",
            ["input_token", "needs input_tokens too", "did you mean 'input_token'"],
            id="misspelt-column",
        ),
        pytest.param("TIMESTAMP,ContextTokens\nx,1\n", ["Azure's CSV needs GeneratedTokens too"], id="azure-column"),
        pytest.param(HEAD + "1,2\n", ["line 3", "output_tokens is missing"], id="short-line"),
        pytest.param(HEAD + "1,-2,1,\n", ["line 3", "input_tokens is '-2'", "from 1 to"], id="negative"),
        pytest.param(HEAD + "1,2,-1,\n", ["line 3", "output_tokens is '-1'", "from 0 to"], id="negative-output"),
        pytest.param(HEAD + "1,0,1,\n", ["line 3", "input_tokens is '0'"], id="no-input"),
        pytest.param(HEAD + "1,many,1,\n", ["line 3", "input_tokens is 'many'"], id="words"),
        pytest.param(HEAD + "1,2.5,1,\n", ["line 3", "input_tokens is '2.5'"], id="fraction"),
        pytest.param(HEAD + f"1,{2**31},1,\n", ["line 3", str(2**31)], id="too-long"),
        pytest.param(HEAD + "nan,1,1,\n", ["line 3", "arrival_ms is 'nan'"], id="nan"),
        pytest.param(HEAD + "-1,1,1,\n", ["line 3", "arrival_ms is '-1'"], id="negative-arrival"),
        pytest.param(HEAD + "1,1,1,1 b\n", ["line 3", "hash_ids is '1 b'"], id="hash"),
        pytest.param(AZURE + "yesterday,1,1\n", ["line 5", "TIMESTAMP is 'yesterday'", "a date and time"], id="date"),
        pytest.param(MOONCAKE + '{"timestamp": 1}\n', ["line 3", "has no input_length, output_length"], id="json-keys"),
        pytest.param(MOONCAKE + "{\n", ["line 3", "is not JSON"], id="json"),
        pytest.param(MOONCAKE + "[1]\n", ["line 3", "no JSON object"], id="json-list"),
        pytest.param(HEAD + "1e16,1,1,\n", ["line 3", "arrival_ms is '1e16'", "from 0 to 1e+15"], id="late-arrival"),
        pytest.param(MOONCAKE + "[" * 200_000, ["line 3", "nested too deeply"], id="json-nested"),
        pytest.param(
            MOONCAKE + '{"timestamp": 1' + "0" * 400 + ', "input_length": 1, "output_length": 1}',
            ["line 3", "timestamp is 1000", "from 0 to 1e+15"],
            id="json-401-digits",
        ),
        pytest.param(
            MOONCAKE + '{"timestamp": true, "input_length": 1, "output_length": 1}',
            ["line 3", "timestamp is True"],
            id="json-bool-arrival",
        ),
        pytest.param(
            MOONCAKE + '{"timestamp": ' + "[" * 900 + "]" * 900 + ', "input_length": 1, "output_length": 1}',
            ["line 3", "mend the line"],
            id="json-nested-value",
        ),
        pytest.param(
            '{"timestamp": 0, "input_length": true, "output_length": 1}', ["line 1", "input_length is True"], id="bool"
        ),
        pytest.param(
            '{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": "1 2"}', ["hash_ids"], id="json-hash"
        ),
    ],
)
def test_bad_content_is_refused_naming_file_and_line(tmp_path, text, told):
    path = write(tmp_path, text)
    with pytest.raises(InvalidArgument) as caught:
        read_trace(path)
    for part in [str(path), *told]:
        assert part in str(caught.value)


def test_a_missing_file_offers_what_is_near(tmp_path):
    write(tmp_path, NORMALISED, "azure.csv")
    with pytest.raises(InvalidArgument, match=r"does not exist; did you mean 'azure.csv'.*leave TRACE out"):
        read_trace(tmp_path / "azur.csv")
    with pytest.raises(InvalidArgument, match="does not exist"):
        read_trace(tmp_path / "no" / "azur.csv")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_trace(tmp_path)


def test_broken_and_binary_files_are_refused(tmp_path):
    whole = gzip.compress((HEAD + "1,2,3,\n" * 5000).encode())
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidArgument, match="cannot be read to its end"):
        read_trace(tmp_path / "cut.gz")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80" * 50)
    with pytest.raises(InvalidArgument, match="not text in UTF-8"):
        read_trace(tmp_path / "binary")


def hashed(*pairs: tuple[int, int]) -> list[Request]:
    return [Request(0, tokens, 1, tuple(range(count))) for tokens, count in pairs]


@pytest.mark.parametrize(
    ("requests", "right"),
    [
        pytest.param(hashed((6758, 14), (7322, 15), (512, 1), (513, 2)), 512, id="rounded-up"),
        pytest.param(hashed((6758, 105), (7322, 114), (64, 1), (127, 1)), 64, id="rounded-down"),
        pytest.param(hashed((90, 3), (30, 1), (31, 2)), 30, id="no-power-of-two"),
        pytest.param([*hashed((64, 1), (65, 2)), Request(0, 9, 1)], 64, id="some-without"),
    ],
)
def test_the_block_size_is_inferred_from_the_numbers_of_hashes(requests, right):
    assert block_tokens(requests, None) == (right, "inferred from the numbers of hashes")
    assert block_tokens(requests, right) == (right, "--block-tokens")


def test_block_sizes_that_cannot_be_are_refused():
    requests = hashed((6758, 14), (7322, 15), (512, 1), (513, 2))
    with pytest.raises(InvalidArgument, match=r"request 1 has 14 hashes for 6758 tokens.*105 whole.*512 fits every"):
        block_tokens(requests, 64)
    with pytest.raises(InvalidArgument, match="pass --block-tokens"):
        block_tokens(hashed((1000, 1)), None)
    with pytest.raises(InvalidArgument, match="no request has block hashes"):
        block_tokens([Request(0, 9, 1)], 64)
    assert block_tokens([Request(0, 9, 1)], None)[0] == 0
    assert block_tokens(requests, 0)[0] == 0


def test_reading_what_was_written_gives_it_back(tmp_path):
    requests = [Request(0, 9, 4, (8, 9)), Request(3.25, 3, 1)]
    columns = ("timestamp", "input_length", "output_length", "hash_ids")
    lines = [json.dumps(dict(zip(columns, request, strict=True))) for request in requests]
    assert read_trace(write(tmp_path, "\n".join(lines))) == requests
