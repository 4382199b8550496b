"""surface.py - the names that programs, files and people outside depend on:
keys, verbs, metrics, functions, messages, reasons, and those of Python. Behind
a name stands what must not change with it: a number, a kind. Each name has to
be on its page, and no name that a release had may go (check-docs --since).

Paths are relative to the current folder, so that a tree of another day can be
asked, too; a file that it lacks has no names."""

import os
import re

import tables

OPERATOR = "cmd/README.md"
PROTOCOL = "lib/wire/PROTOCOL.md"
COMPATIBILITY = "cmd/COMPATIBILITY.md"
SAMPLES = ("conf/mmx-encoded.yaml", "conf/mmx-langd.yaml")
METRICS = "cmd/exporter/metrics.c"
HEADS = {"KEY": "", "POOL_KEY": "pools[].", "PEER_KEY": "peers[]."}
# A metric in the exporter's source, and what its HELP says.
METRIC = re.compile(r'"(mmx_[a-z_]+)",\s*(?:[A-Z]+,\s*)?((?:"[^"]*"\s*)+)')


def read(*paths):
    text = ""
    for p in paths:
        if os.path.exists(p):
            with open(p, encoding="utf-8") as f:
                text += f.read()
    return text


def rows(path):
    return tables.rows(path) if os.path.exists(path) else ()


def keys():
    """Dotted keys, and those of a pool or peer as pools[].key."""
    return {k.split()[0] for k in keys_with_kinds()}


def keys_with_kinds():
    return {f"{HEADS[m]}{a[1]} {a[2]}"
            for m, a in rows("lib/core/conf/conf.def")}


def verbs():
    """What mmxctl can be asked for or told to do."""
    return {a[1] for path in ("show", "command")
            for _, a in rows(f"lib/wire/{path}.def")} | set(
                re.findall(r'"  ([a-z]+)(?: [A-Z]+)?  +\w', read("cmd/mmxctl.c")))


def own_metrics(path=METRICS):
    """{metric that is in the exporter's source: what it says}"""
    text = read(path)
    found = {name: "".join(re.findall(r'"([^"]*)"', says))
             for name, says in METRIC.findall(text)}
    for name in set(re.findall(r'"(mmx_[a-z_]+)"', text)) - set(found):
        raise tables.TableError(f"{METRICS}: {name} says nothing")
    return found


def metrics():
    """All of them: also the counters and histograms of the daemons."""
    counters = {a[0] for top in ("core", "node")
                for _, a in rows(f"lib/{top}/stats.def")}
    units = {"US": "seconds", "BYTES": "bytes"}
    return set(own_metrics()) | {
        "mmx_unknown_flags_total" if c == "unknown_bits" else f"mmx_{c}_total"
        for c in counters} | {
        f"mmx_{a[0]}_{units[a[2]]}"
        for _, a in rows("lib/core/histogram/histograms.def")}


def functions():
    return set(re.findall(r"\b(mmx_[a-z0-9_]+)\([^;{}]*\);", re.sub(
        r"/\*.*?\*/|//[^\n]*", "",
        read("lib/client/mmx.h", "lib/client/mmx_aux.h",
             "lib/client/mmx_binding.h"), flags=re.S)))


def messages():
    return {f"{m['name']} {m['number']} {wire}" for wire in ("local", "peer")
            if os.path.exists(f"lib/wire/{wire}.def")
            for m in tables.messages(f"lib/wire/{wire}.def")}


def reasons():
    return {f"{a[2]} {a[1]} {a[3]}" for _, a in rows("lib/base/err.def")}


def states():
    return {f"{a[2]} {a[1]}" for _, a in rows("lib/wire/room.def")}


def dtypes():
    return {f"{a[0]} {a[1]}" for _, a in rows("lib/wire/dtype.def")}


def tags():
    """Of aux."""
    return {f"{a[0].lower()} {a[1]} {a[2]}"
            for _, a in rows("lib/client/aux_data.def")}


def python():
    """What `import mmx` is for."""
    names = re.search(r"^__all__ = \[(.*?)^\]",
                      read("lib/client/python/mmx/__init__.py"), re.M | re.S)
    return set(re.findall(r'"(\w+)"', names[1])) if names else set()


def all_names():
    return {"key": keys_with_kinds(), "verb": verbs(), "metric": metrics(),
            "function": functions(), "message": messages(),
            "reason": reasons(), "state": states(), "dtype": dtypes(),
            "tag of aux": tags(), "Python name": python()}


# Where a name is, and how it stands there. Manuals are made of what is looked at
# here: test_manuals and test_exporter hold them against the programs.
PLACES = {
    "key": (SAMPLES, lambda n: rf"^[ -]*{n.split()[0].rpartition('.')[2]}:"),
    "verb": ((OPERATOR,), lambda n: rf"(^    |`)mmxctl( --\w+)? {n}\b"),
    "message": ((PROTOCOL,), lambda n: rf"^#### {n.split()[0]} \("),
    "reason": ((PROTOCOL,), lambda n: rf"^\| \d+ \| `{n.split()[0]}` \|"),
    "Python name": ((COMPATIBILITY,), lambda n: rf"`{n}`"),
}


def without_page():
    """Yields what is wrong."""
    for kind, names in all_names().items():
        if not names:
            yield f"no {kind} is found"
        if kind in PLACES:
            pages, pattern = PLACES[kind]
            text = read(*pages)
            yield from (f"{' and '.join(pages)}: the {kind} {n} is missing"
                        for n in sorted(names)
                        if not re.search(pattern(n), text, re.M))


def gone(before):
    """Yields the names that another tree (`before`) had and this one lacks."""
    here = all_names()
    for kind, names in before.items():
        yield from (f"the {kind} {n} is gone"
                    for n in sorted(names - here[kind]))
