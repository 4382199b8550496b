"""The names of an engine that an adapter needs, with signatures and defaults,
read from a published wheel by ast: nothing is imported, nothing installed.

A folder's signatures.json is {"PACKAGE VERSION": {file: {name: signature}}}.
`differences` says what a release has changed."""

import ast
import contextlib
import importlib.util
import json
import os
import re
import tempfile
import zipfile

import install

HERE = os.path.dirname(os.path.abspath(__file__))
CALL = re.compile(r"(?:(?:class|static|abstract)method |property )*(\(.*\))$")


def signature(f):
    """Returns the parameters of a function, as text."""
    a = f.args
    plain = a.posonlyargs + a.args
    without = len(plain) - len(a.defaults)
    words = [p.arg if i < without else
             f"{p.arg}={ast.unparse(a.defaults[i - without])}"
             for i, p in enumerate(plain)]
    if a.vararg or a.kwonlyargs:
        words.append("*" + (a.vararg.arg if a.vararg else ""))
    words += [p.arg if d is None else f"{p.arg}={ast.unparse(d)}"
              for p, d in zip(a.kwonlyargs, a.kw_defaults)]
    if a.kwarg:
        words.append("**" + a.kwarg.arg)
    return "(" + ", ".join(words) + ")"


def members(node):
    """Yields the members of a class: methods, fields and values."""
    for n in node.body:
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            marks = {ast.unparse(d) for d in n.decorator_list}
            kind = "".join(f"{m} " for m in ("classmethod", "staticmethod",
                                             "property", "abstractmethod")
                           if m in marks)
            yield n.name, kind + signature(n)
            if n.name == "__init__":
                yield from attributes(n)
        elif isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name):
            yield n.target.id, "" if n.value is None else \
                f"= {ast.unparse(n.value)}"
        elif isinstance(n, ast.Assign):
            for t in n.targets:
                if isinstance(t, ast.Name):
                    yield t.id, f"= {ast.unparse(n.value)}"


def attributes(init):
    for n in ast.walk(init):
        targets = n.targets if isinstance(n, ast.Assign) else \
            [n.target] if isinstance(n, ast.AnnAssign) else []
        for t in targets:
            if isinstance(t, ast.Attribute) and \
                    ast.unparse(t.value) == "self":
                yield f"self.{t.attr}", "attribute"


def names(source, wanted):
    """Returns {name: signature} of a module for each wanted name: a function,
    a variable, Class.member, or Class.* for all public members."""
    found = {}
    for n in ast.parse(source).body:
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[n.name] = signature(n)
        elif isinstance(n, ast.ClassDef):
            for name, what in members(n):
                found.setdefault(f"{n.name}.{name}", what)
        elif isinstance(n, (ast.Assign, ast.AnnAssign)) and n.value:
            at = n.targets[0] if isinstance(n, ast.Assign) else n.target
            if isinstance(at, ast.Name):
                found[at.id] = f"= {ast.unparse(n.value)}"
    out = {}
    for name in wanted:
        if name.endswith(".*"):
            out.update({k: v for k, v in found.items()
                        if k.startswith(name[:-1]) and
                        ".self." not in k and
                        not k.split(".")[1].startswith("_")})
        else:
            out[name] = found.get(name)  # None: the file has no such name
    return out


def read(get, spec):
    """Returns {file: {name: signature}}. get: returns the bytes of a file, or
    None. A spec may have a reader of its own."""
    found = {path: get(path) for path in spec.NAMES}
    return {path: None if found[path] is None else
            getattr(spec, "names", names)(found[path].decode(), wanted)
            for path, wanted in spec.NAMES.items()}


@contextlib.contextmanager
def wheel(path, spec):
    """Returns a function that reads the files of a wheel, or of the one file
    in it that a spec names instead."""
    with zipfile.ZipFile(path) as z:
        there = set(z.namelist())

        def get(name):
            name = getattr(spec, "IN_WHEEL", name)
            return z.read(name) if name in there else None
        yield get


def parameters(call):
    """Returns the parameters of a signature with their defaults, in order;
    None: it is not callable."""
    found = CALL.match(call)
    if not found:
        return None
    a = ast.parse(f"def f{found[1]}: pass").body[0].args
    parts = [(p.arg, d) for p, d in zip(
        a.posonlyargs + a.args, [None] * (len(a.posonlyargs + a.args) -
                                          len(a.defaults)) + a.defaults)]
    parts += [("*" + a.vararg.arg, None)] if a.vararg else []
    parts += [(p.arg, d) for p, d in zip(a.kwonlyargs, a.kw_defaults)]
    parts += [("**" + a.kwarg.arg, None)] if a.kwarg else []
    return {name: "" if d is None else f"={ast.unparse(d)}"
            for name, d in parts}


def changed(name, old, new):
    """Yields how a name has changed: one line, or one for each parameter."""
    was, now = parameters(old), None if new is None else parameters(new)
    kind = "value" if was is None else "call"
    if new is None:
        yield f"{kind} {name} is gone"
        return
    said = False
    if was is not None and now is not None and \
            old[:old.index("(")] == new[:new.index("(")]:
        for p in was:
            if now.get(p) != was[p]:
                said = True
                yield f"parameter {p}{was[p]} of {name} is " + (
                    f"{p}{now[p]} now" if p in now else "gone")
        for p in now:
            if p not in was:
                said = True
                yield f"parameter {p}{now[p]} of {name} is new"
    if not said:  # the order, kind or type has changed
        yield f"{kind} {name}: {old or 'no value'}, now {new or 'no value'}"


def differences(old, new):
    """Yields a line for each change of a file, class, call, parameter or value
    in a release."""
    for path, names_ in old.items():
        if new.get(path) is None:
            yield f"{path} is gone"
            continue
        now = new[path]
        classes = {}
        for name in names_:
            classes.setdefault(name.rpartition(".")[0].split(".")[0],
                               []).append(now.get(name))
        gone = {c for c, found in classes.items() if c and not any(
            what is not None for what in found)}
        yield from (f"{path}: class {c} is gone" for c in sorted(gone))
        for name, what in names_.items():
            if now.get(name) != what and name.split(".")[0] not in gone:
                for line in changed(name, what, now.get(name)):
                    yield f"{path}: {line}"
        for name, what in now.items():
            if name not in names_ and what is not None:
                yield f"{path}: {name}{what} is new"


def spec_of(name):
    spec = importlib.util.spec_from_file_location(
        f"spec_{name}", os.path.join(HERE, name, "spec.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed(name):
    """Returns the table of an engine: {"PACKAGE VERSION": {file: {name:
    signature}}}."""
    spec = spec_of(name)
    if hasattr(spec, "committed"):
        return spec.committed()
    with open(os.path.join(HERE, name, "signatures.json"),
              encoding="utf-8") as f:
        return json.load(f)


def lacking(name):
    """Returns, one per line, the needed names of tested releases that an
    engine's committed table lacks."""
    spec, table = spec_of(name), committed(name)
    tested = [wheel.replace("==", " ") for wheel in spec.TESTED]
    lines = [] if tested == list(table) else [f"{tested}, not {list(table)}"]
    for release, files in table.items():
        lines += [f"{release}: {path}" for path in set(files) ^ set(spec.NAMES)]
        lines += [f"{release}: {path}: {one}" for path, names in files.items()
                  for one, what in names.items() if what is None]
    return lines


def refresh(name, at):
    """Writes the table from the wheels of the tested releases; if another file
    is the table, compares the wheels with that."""
    spec = spec_of(name)
    install.room_for(at, spec.WHEEL_BYTES)
    table = {}
    with tempfile.TemporaryDirectory(dir=at) as tmp:
        venv = install.make_venv(os.path.join(tmp, "venv"))
        for i, wanted in enumerate(spec.TESTED):
            with wheel(install.fetch(venv, wanted, os.path.join(
                    tmp, f"w{i}")), spec) as get:
                table[wanted.replace("==", " ")] = read(get, spec)
    if hasattr(spec, "committed"):
        lines = [line for release, old in spec.committed().items()
                 for line in differences(old, table[release])]
        print("\n".join(lines or [f"{name}: the table is that of the tested "
                                  "release"]))
        return 1 if lines else 0
    path = os.path.join(HERE, name, "signatures.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(table, f, indent=1)
        f.write("\n")
    print(f"wrote {path}")
    return 0
