#!/usr/bin/python3
"""embedding_check - compute all vectors of test/vectors/embedding.json anew.

    python3 embedding_check.py [FILE]

Written from lib/wire/EMBEDDING.md alone, with the standard library and without
mmx, so that it works wherever it is copied. The last line is the count; the
exit status is 0 when each vector is as the page says."""

import hashlib
import json
import os
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
VECTORS = os.path.join(HERE, "../vectors/embedding.json")


class Refused(ValueError):
    """An error whose text is the reason: malformed, version or too-large."""


# --- names of rooms -------------------------------------------------------
WORD = 2**64 - 1


def fnv(data):
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 & WORD
    return h


def room_id(name):
    h = fnv(name)
    h = (h ^ h >> 33) * 0xff51afd7ed558ccd & WORD
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53 & WORD
    return h ^ h >> 33


def reference_read(said):
    """Returns (id, secret) of a text or of 24 bytes."""
    if isinstance(said, bytes):
        room, secret = int.from_bytes(said[:8], "little"), said[8:]
        good = len(said) == 24
    else:
        good = re.fullmatch("([0-9a-f]{16})(-([0-9a-f]{32}))?", said)
        room = int(good[1], 16) if good else 0
        secret = bytes.fromhex(good[3] or "0" * 32) if good else b""
    if not good or not room:
        raise Refused("malformed")
    return room, secret


def reference_text(room, secret):
    return f"{room:016x}" + (f"-{secret.hex()}" if any(secret) else "")


# --- rows -----------------------------------------------------------------
DTYPES = {"bf16": 2, "f16": 2, "f32": 4, "f8e4m3": 1, "f8e5m2": 1, "i8": 1,
          "u8": 1, "i16": 2, "i32": 4, "i64": 8, "bool": 1}


def layout(said):
    """Returns (text, bytes of a row)."""
    fields = re.sub(", +(?=[a-z_])", ",", said).split(",")
    names, size = set(), 0
    for field in fields:
        good = re.fullmatch("([a-z_][a-z0-9_]{0,30}):([a-z0-9]+):"
                            "([1-9][0-9]{0,7})", field)
        if not good or good[1] in names or good[2] not in DTYPES:
            raise Refused("malformed")
        names.add(good[1])
        size += DTYPES[good[2]] * int(good[3])
    text = ",".join(fields)
    if len(fields) > 32 or len(text) > 1024 or size > 1 << 24:
        raise Refused("malformed")
    return text, size


def rows_of(storage, offset, length, embed, row_base):
    """Returns the row of each position of a span, or None."""
    rows, ones = [], 0
    for i in range(length):
        row = row_base + {"compact": ones, "padded": i,
                          "prompt": offset + i}[storage]
        takes = not embed or embed[i] == "1"
        rows.append(row if takes else None)
        ones += takes
    return rows


# --- aux ------------------------------------------------------------------
MAX, WHOLE = 32768, 16 << 20
MODALITIES = {"image": 1, "video": 2, "audio": 3}
# tag: name, struct's format of a value, values of an entry, whether one entry
# stands without a list
TAGS = {1: ("modality", "I", 1, True), 2: ("flags", "I", 1, True),
        3: ("part", "I", 2, True), 4: ("rows", "I", 1, False),
        5: ("grid", "I", 3, False), 6: ("merge", "I", 1, True),
        7: ("sizes", "I", 2, False), 8: ("span", "I", 1, False),
        9: ("mrope_delta", "i", 1, True), 10: ("times", "d", 1, False),
        11: ("seconds", "d", 1, False), 12: ("chunk", "s", 1, False),
        13: ("extra", "s", 1, False), 65535: ("rest", "I", 1, True)}


def record(tag, data):
    return struct.pack("<HHI", tag, 0, len(data)) + data + \
        bytes(-len(data) % 8)


def headed(records):
    return struct.pack("<3sBI", b"MXA", 1, 8 + len(records)) + records


def values(name, kind, said):
    if name == "extra":
        return json.dumps(said, separators=(",", ":"),
                          ensure_ascii=False).encode()
    if kind == "s":
        return said
    if name == "modality":
        said = MODALITIES[said]
    flat = [said]
    while any(isinstance(n, (list, tuple)) for n in flat):
        flat = [n for entry in flat for n in entry]
    return struct.pack(f"<{len(flat)}{kind}", *flat)


def aux_write(says):
    return headed(b"".join(record(tag, values(name, kind, says[name]))
                           for tag, (name, kind, _, _) in TAGS.items()
                           if name in says))


def records(data, at):
    """Yields (tag, values, offset of the next record)."""
    last = 0
    while at < len(data):
        if len(data) - at < 8:
            raise Refused("malformed")
        tag, zero, size = struct.unpack_from("<HHI", data, at)
        end = at + 8 + size + -size % 8
        said, fill = data[at + 8:at + 8 + size], data[at + 8 + size:end]
        if zero or not size or end > len(data) or any(fill) or tag <= last:
            raise Refused("malformed")
        if tag not in TAGS and tag & 0x8000:
            raise Refused("version")
        if tag in TAGS:
            _, kind, per, one = TAGS[tag]
            entry = struct.calcsize(f"<{kind}") * per
            if size % entry or one and size != entry:
                raise Refused("malformed")
        yield tag, said, end
        last, at = tag, end


def aux_read(data):
    if len(data) < 8 or data[:3] != b"MXA":
        raise Refused("malformed")
    if data[3] != 1:
        raise Refused("version")
    if struct.unpack_from("<I", data, 4)[0] != len(data) or len(data) > WHOLE:
        raise Refused("malformed")
    return {TAGS[tag][0]: value(tag, said)
            for tag, said, _ in list(records(data, 8)) if tag in TAGS}


def value(tag, said):
    name, kind, per, one = TAGS[tag]
    if name == "extra":
        return extra(said)
    if kind == "s":
        return said
    entries = [e if per > 1 else e[0]
               for e in struct.iter_unpack(f"<{per}{kind}", said)]
    if name == "modality":
        known = {n: word for word, n in MODALITIES.items()}
        return known.get(entries[0], entries[0])
    return entries[0] if one else entries


def extra(said):
    try:
        out = json.loads(said.decode())
    except (ValueError, RecursionError):
        raise Refused("malformed") from None
    if not isinstance(out, dict):
        raise Refused("malformed")
    return out


def aux_split(whole):
    """Returns (aux, rest)."""
    cut = 8
    for tag, _, end in records(whole, 8):
        if tag == 65535:
            raise Refused("malformed")
        if len(whole) > MAX and end > MAX - 16:
            break
        cut = end
    rest = whole[cut:]
    more = record(65535, struct.pack("<I", len(rest))) if rest else b""
    return headed(whole[8:cut] + more), rest


def rest_rows(aux, total, row_bytes):
    """Returns how many of the room's rows belong to no item."""
    says = aux_read(aux) if aux else {}
    if "rest" not in says:
        return 0
    size = says["rest"]
    if not size:
        raise Refused("malformed")
    rows = -(-size // row_bytes)
    if len(aux) > MAX or rows > total or len(aux) - 16 + size > WHOLE:
        raise Refused("too-large")
    return rows


def aux_join(aux, rows):
    """Returns the whole aux. rows: the bytes of the room's last rows."""
    if not rest_rows(aux, len(rows), 1):
        return aux
    size = aux_read(aux)["rest"]
    whole = headed(aux[8:-16] + rows[:size])
    aux_read(whole)
    if any(rows[size:]) or aux_split(whole) != (aux, rows[:size]):
        raise Refused("malformed")
    return whole


# --- keys -----------------------------------------------------------------
def digest(*words):
    return hashlib.sha256(json.dumps(list(words)).encode()).digest()


def vllm_key(scope, model, revision, dtype, epoch, identifier):
    return hashlib.sha256(digest(scope, model, revision, dtype) + epoch +
                          identifier.encode(errors="surrogatepass")).digest()


def llama_key(tag, digest_hex):
    turn = b"".join(room_id(b"%d/" % i + tag.encode()).to_bytes(8, "little")
                    for i in range(4))
    return bytes(a ^ b for a, b in zip(bytes.fromhex(digest_hex), turn))


# --- the vectors ----------------------------------------------------------
def said_of(says):
    """Returns the values of an aux in the file, whose long lists are
    shortened."""
    out = dict(says)
    for name, v in says.items():
        if name == "times" and isinstance(v, dict):
            out[name] = [i * v["step"] for i in range(v["count"])]
        elif name == "chunk":
            out[name] = bytes.fromhex(v) if isinstance(v, str) else \
                bytes([v["byte"]]) * v["count"]
        elif name in ("part", "grid", "sizes"):
            out[name] = tuple(v) if name == "part" else [tuple(e) for e in v]
    return out


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def refusal(call, *args):
    try:
        call(*args)
    except Refused as e:
        return str(e)
    return "it is taken"


def check_room_id(v):
    return {"id": f"{room_id(v['name'].encode()):016x}"}


def check_reference(v):
    room, secret = reference_read(v["text"])
    assert reference_read(bytes.fromhex(v["bytes"])) == (room, secret)
    return {"text": reference_text(room, secret), "id": f"{room:016x}",
            "secret": secret.hex(),
            "bytes": (room.to_bytes(8, "little") + secret).hex()}


def check_reference_refused(v):
    said = bytes.fromhex(v["bytes"]) if "bytes" in v else v["text"]
    return {"why": refusal(reference_read, said)}


def check_layout(v):
    text, size = layout(v["said"])
    return {"text": text, "row_bytes": size,
            "hash": f"{fnv(text.encode()):016x}"}


def check_layout_refused(v):
    return {"why": refusal(layout, v["said"])}


def check_storage(v):
    return {"rows": rows_of(v["storage"], v["offset"], v["length"],
                            v["embed"], v["row_base"])}


def check_aux(v):
    says = said_of(v["says"])
    whole = aux_write(says)
    assert aux_read(whole) == says
    aux, rest = aux_split(whole)
    fill = bytes(-len(rest) % v["row_bytes"])
    assert aux_join(aux, rest + fill) == whole
    return {"aux": aux.hex() if len(aux) < 1024 else sha256(aux),
            "rest_bytes": len(rest), "rest_sha256": sha256(rest),
            "rest_rows": rest_rows(aux, 1 << 20, v["row_bytes"])}


def check_aux_skipped(v):
    return {"says": aux_read(bytes.fromhex(v["aux"]))}


def check_aux_refused(v):
    return {"why": refusal(aux_read, bytes.fromhex(v["aux"]))}


def check_rest_refused(v):
    aux, rows = bytes.fromhex(v["aux"]), bytes.fromhex(v["rows"])
    return {"why": refusal(lambda: rest_rows(
        aux, len(rows) // v["row_bytes"], v["row_bytes"]) and
        aux_join(aux, rows))}


def check_vllm_epoch(v):
    epoch = digest(v["said"])[:16]
    return {"epoch": epoch.hex(),
            "next": hashlib.sha256(epoch).digest()[:16].hex()}


def check_vllm_key(v):
    return {"key": vllm_key(v["scope"], v["model"], v["revision"], v["dtype"],
                            bytes.fromhex(v["epoch"]), v["identifier"]).hex()}


def check_llama_key(v):
    name = f"mtmd/{v['tag']}/{v['digest']}".encode()
    return {"id": f"{room_id(name):016x}",
            "key": llama_key(v["tag"], v["digest"]).hex()}


def check_sglang_room(v):
    return {"id": f"{room_id(v['request'].encode()):016x}",
            "secret": re.fullmatch(".*~([0-9a-f]{32})(_local_part_[0-9]+)?",
                                   v["request"], re.DOTALL)[1]}


def check_place(v):
    names, load = v["encoders"], dict(zip(v["encoders"], v["load"]))
    weight = {n: room_id(bytes.fromhex(v["key"]) + n.encode()) for n in names}
    full = -(-v["bound"] * (sum(v["load"]) + 1) // (100 * len(names)))
    return {"weights": [f"{weight[n]:016x}" for n in names], "full": full,
            "order": sorted(names, key=lambda n: (
                load[n] >= full, -weight[n], n.encode()))}


def wrong(vector):
    """Returns where a vector differs from what is computed, or ""."""
    check = globals().get("check_" + vector["kind"].replace("-", "_"))
    if not check:
        return "of an unknown kind"
    try:
        got = check(vector)
    except (AssertionError, ValueError, TypeError, KeyError) as e:
        return f"{type(e).__name__} {e}"
    return ", ".join(f"{name} is {got[name]!r:.80}" for name in got
                     if vector.get(name) != got[name])


def main():
    with open(sys.argv[1] if sys.argv[1:] else VECTORS,
              encoding="utf-8") as f:
        vectors = json.load(f)
    failed = 0
    for number, vector in enumerate(vectors, 1):
        why = wrong(vector)
        if why:
            failed += 1
            print(f"vector {number}, {json.dumps(vector):.70}: {why}")
    print(f"{len(vectors) - failed} passed, {failed} failed")
    return 1 if failed or not vectors else 0


if __name__ == "__main__":
    sys.exit(main())
