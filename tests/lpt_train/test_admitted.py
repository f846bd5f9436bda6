"""The only door for data: what passes, what is refused, and whether the refusal names the rows."""

from __future__ import annotations

import hashlib
import shutil

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from train_cases import admit_by_hand, chat, chats, preferences, write_jsonl

from lpt_train.admitted import check_contract, check_tokenizer, load_split, load_unadmitted
from manifests.canon import record_id
from manifests.catalog import Catalog
from manifests.errors import BadInputError, RefusedError


@pytest.fixture
def catalog(tmp_path) -> Catalog:
    return Catalog.open(tmp_path / ".lpt")


@pytest.fixture
def admitted(catalog):
    """The Parquet file of the train split of an admitted set of twelve conversations."""
    ref = admit_by_hand(catalog, "sft", {"train": chats(12), "test": chats(13)[12:]})
    return catalog.splits_dir / ref / "train-00000.parquet"


def rewrite(path, change) -> None:
    """Pass the rows of a Parquet file through `change` and write them back."""
    table = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema), path)


def refusal(catalog) -> str:
    with pytest.raises(RefusedError) as error:
        load_split("chats:train", catalog=catalog)
    assert error.value.exit_code == 4
    return str(error.value)


def test_what_was_admitted_passes_with_its_identity(catalog, admitted):
    split = load_split("chats:train", catalog=catalog)
    assert list(split.rows()) == chats(12)
    assert split.record_ids == [record_id("sft", row).hex() for row in chats(12)]
    assert (split.ref, split.contract, split.verified, split.tainted) == ("chats@1:train", "sft", "admitted", False)
    assert split.manifest_id == next(catalog.find("lpt.admission/1"))[0]
    assert len(split) == 12


def test_a_carried_folder_needs_no_catalog(catalog, admitted, tmp_path):
    carried = shutil.copytree(admitted.parent, tmp_path / "elsewhere")
    here, there = load_split("chats:train", catalog=catalog), load_split(f"{carried}/manifest.json:train")
    assert there.content_root == here.content_root
    assert there.manifest_id == here.manifest_id


def test_an_edited_manifest_in_a_carried_folder_is_refused(catalog, admitted, tmp_path):
    carried = shutil.copytree(admitted.parent, tmp_path / "elsewhere") / "manifest.json"
    sums = f"{hashlib.sha256(carried.read_bytes()).hexdigest()}  manifest.json\n"
    (carried.parent / "SHA256SUMS").write_text(sums)
    assert len(load_split(f"{carried}:train")) == 12
    carried.write_bytes(orjson.dumps(orjson.loads(carried.read_bytes()) | {"checks": []}))
    with pytest.raises(RefusedError, match="SHA256SUMS"):
        load_split(f"{carried}:train")


def test_an_edited_row_is_named(catalog, admitted):
    def edit(rows):
        rows[5]["messages"][1]["content"] += "!"
        return rows

    rewrite(admitted, edit)
    edited = {"messages": [chats(12)[5]["messages"][0], dict(chats(12)[5]["messages"][1])]}
    edited["messages"][1]["content"] += "!"
    text = refusal(catalog)
    assert "row 5 was edited" in text
    assert record_id("sft", chats(12)[5]).hex()[:16] in text
    assert record_id("sft", edited).hex()[:16] in text
    assert "row 4" not in text


def test_an_edited_row_with_its_id_rewritten_is_found_by_its_bucket(catalog, admitted):
    def edit(rows):
        rows[5]["messages"][1]["content"] += "!"
        rows[5]["record_id"] = record_id("sft", {"messages": rows[5]["messages"]}).hex()
        return rows

    rewrite(admitted, edit)
    text = refusal(catalog)
    assert "row 5 was added" in text
    assert f"a row is gone: {record_id('sft', chats(12)[5]).hex()[:3]}" in text


def test_a_removed_row_is_named_by_the_start_of_its_id(catalog, admitted):
    rewrite(admitted, lambda rows: rows[:3] + rows[4:])
    text = refusal(catalog)
    assert "11 rows, 12 were admitted" in text
    assert f"a row is gone: {record_id('sft', chats(12)[3]).hex()[:3]}" in text


def test_an_added_and_a_doubled_row_are_named(catalog, admitted):
    new = {"messages": chat("new", "row")}
    rewrite(admitted, lambda rows: [*rows, {**new, "record_id": record_id("sft", new).hex()}])
    assert "row 12 was added" in refusal(catalog)
    rewrite(admitted, lambda rows: [*rows[:12], rows[2]])
    assert "row 12 is there once too often" in refusal(catalog)


def test_another_order_is_told_apart(catalog, admitted):
    rewrite(admitted, lambda rows: rows[::-1])
    assert "in another order" in refusal(catalog)


def test_bytes_alone_are_told_apart(catalog, admitted):
    pq.write_table(pq.read_table(admitted), admitted, compression="gzip")
    assert "only the bytes differ: all 12 rows and their order are as admitted" in refusal(catalog)


def test_a_file_that_is_no_longer_parquet_is_refused(catalog, admitted):
    admitted.write_bytes(admitted.read_bytes()[:100])
    assert "is not what was admitted" in refusal(catalog)


def test_a_missing_file_is_bad_input(catalog, admitted):
    admitted.unlink()
    with pytest.raises(BadInputError) as error:
        load_split("chats:train", catalog=catalog)
    assert error.value.exit_code == 5


def test_other_splits_of_the_set_do_not_matter(catalog, admitted):
    admitted.with_name("test-00000.parquet").unlink()
    assert len(load_split("chats:train", catalog=catalog)) == 12


def test_a_manifest_that_lies_about_its_rows_is_refused(catalog, admitted):
    path = admitted.with_name("manifest.json")
    body = orjson.loads(path.read_bytes())
    rewrite(admitted, lambda rows: rows[:6])
    body["splits"]["train"]["files"][0] |= {
        "sha256": __import__("hashlib").sha256(admitted.read_bytes()).hexdigest(),
        "bytes": admitted.stat().st_size,
    }
    path.write_bytes(orjson.dumps(body))
    with pytest.raises(RefusedError, match="is not what was admitted"):
        load_split(f"{path}:train")


def test_a_path_out_of_the_folder_is_refused(catalog, admitted, tmp_path):
    outside = shutil.copy(admitted, tmp_path / "outside.parquet")
    path = admitted.with_name("manifest.json")
    for written in ("../../../outside.parquet", str(outside)):
        body = orjson.loads(path.read_bytes())
        body["splits"]["train"]["files"][0]["path"] = written
        (admitted.parent / "forged.json").write_bytes(orjson.dumps(body))
        with pytest.raises(RefusedError, match="outside its own folder"):
            load_split(f"{admitted.parent}/forged.json:train")


def test_a_rejected_set_is_refused_and_a_tuned_one_is_marked(catalog):
    failed = {"id": "leakage.exact", "status": "fail"}
    admit_by_hand(catalog, "sft", {"train": chats(3)}, name="bad", verdict="reject", checks=(failed,))
    with pytest.raises(RefusedError, match="rejected") as error:
        load_split("bad:train", catalog=catalog)
    assert "leakage.exact" in str(error.value)
    admit_by_hand(catalog, "sft", {"train": chats(3)}, name="tuned", verdict="tune")
    assert load_split("tuned:train", catalog=catalog).verdict == "tune"


def test_another_contract_is_refused(catalog):
    rows = [{"prompt": chat("2+2"), "answer": "4", "verifier": "integer"}]
    admit_by_hand(catalog, "rlvr", {"train": rows}, name="sums")
    split = load_split("sums:train", catalog=catalog)
    check_contract(split, "grpo")
    with pytest.raises(RefusedError, match="admitted for rlvr, not for sft") as error:
        check_contract(split, "sft")
    assert error.value.next.startswith("lpt train grpo")


def test_another_tokenizer_is_refused_by_contents(catalog):
    recorded = {"name": "theirs", "fingerprint": "a" * 64, "max_length": 512, "template_sha256": "b" * 64}
    admit_by_hand(catalog, "sft", {"train": chats(3)}, tokenizer=recorded)
    split = load_split("chats:train", catalog=catalog)
    check_tokenizer(split, "a" * 64, "another name")
    with pytest.raises(RefusedError, match="another tokenizer"):
        check_tokenizer(split, "c" * 64, "theirs")


def test_unknown_names_are_bad_input(catalog, admitted):
    for ref in ("chatz:train", "chats:training", "chats@7:train"):
        with pytest.raises(BadInputError):
            load_split(ref, catalog=catalog)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_unadmitted_rows_are_marked(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    if suffix == "jsonl":
        write_jsonl(path, chats(4))
    else:
        pq.write_table(pa.Table.from_pylist(chats(4)), path)
    split = load_unadmitted(path, "sft")
    assert list(split.rows()) == chats(4)
    assert split.tainted
    assert (split.manifest_id, split.verdict, split.ref) == (None, "unadmitted", str(path))


def test_the_first_unadmitted_row_says_which_of_the_contracts_of_a_command_it_is(tmp_path):
    turn = [{"role": "user", "content": "q"}]
    kto = {"prompt": turn, "completion": [{"role": "assistant", "content": "a"}], "label": True}
    for number, (row, wanted) in enumerate([(kto, "kto"), (preferences(1)[0], "preference")]):
        path = write_jsonl(tmp_path / f"{number}.jsonl", [row])
        assert load_unadmitted(path, "preference", "kto").contract == wanted


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": [{"role": "user"', "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"instruction": "a", "output": "b"}', "row 1"),
        ('{"messages": "hi"}', "row 1"),
    ],
)
def test_unadmitted_rows_of_another_shape_are_bad_input(tmp_path, line, said):
    path = write_jsonl(tmp_path / "rows.jsonl", chats(1))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(BadInputError, match=said) as error:
        load_unadmitted(path, "sft")
    assert error.value.next


def test_a_field_that_the_first_unadmitted_row_lacks_is_kept(tmp_path):
    rows = [*chats(1), {**chats(2)[1], "tools": '[{"name": "f"}]'}]
    assert list(load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows), "sft").rows()) == rows
