"""The names of an engine that an adapter needs, with signatures and defaults,
read from a published wheel by ast: nothing is imported, nothing installed.

A folder's signatures.json is {"PACKAGE VERSION": {file: {name: signature}}}.
`differences` says what a release has changed."""

import ast
import importlib.util
import json
import os
import tempfile
import zipfile

import install

HERE = os.path.dirname(os.path.abspath(__file__))


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
    """Yields what a class has: methods, fields and values."""
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
    Class.member, or Class.* for all public members."""
    found = {}
    for n in ast.parse(source).body:
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[n.name] = signature(n)
        elif isinstance(n, ast.ClassDef):
            for name, what in members(n):
                found.setdefault(f"{n.name}.{name}", what)
    out = {}
    for name in wanted:
        if name.endswith(".*"):
            out.update({k: v for k, v in found.items()
                        if k.startswith(name[:-1]) and
                        ".self." not in k and
                        not k.split(".")[1].startswith("_")})
        else:
            out[name] = found.get(name)  # None: it is not there
    return out


def read(wheel, spec):
    """Returns {file: {name: signature}} of a wheel."""
    table = {}
    with zipfile.ZipFile(wheel) as z:
        there = set(z.namelist())
        for path, wanted in spec.items():
            table[path] = names(z.read(path).decode(), wanted) \
                if path in there else None
    return table


def differences(old, new):
    """Yields one line for each name that a release changed."""
    for path, names_ in old.items():
        if new.get(path) is None:
            yield f"{path} is gone"
            continue
        for name, what in names_.items():
            now = new[path].get(name)
            if now != what:
                yield f"{path}: {name}{what or ''} is now " \
                    f"{'gone' if now is None else name + now}"
        for name in new[path]:
            if name not in names_:
                yield f"{path}: {name}{new[path][name]} is new"


def spec_of(name):
    spec = importlib.util.spec_from_file_location(
        f"spec_{name}", os.path.join(HERE, name, "spec.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed(name):
    with open(os.path.join(HERE, name, "signatures.json"),
              encoding="utf-8") as f:
        return json.load(f)


def refresh(engine, name, at, newest):
    """Writes the table from the tested releases' wheels; newest: only prints
    what the newest release has changed."""
    spec = spec_of(name)
    install.room_for(at, spec.WHEEL_BYTES)
    with tempfile.TemporaryDirectory(dir=at) as tmp:
        venv = install.make_venv(os.path.join(tmp, "venv"))
        if newest:
            package = spec.NEWEST
            wheel = install.fetch(venv, package, os.path.join(tmp, "w"))
            version = install.metadata(wheel)["Version"]
            last = list(committed(name).items())[-1]
            lines = list(differences(last[1], read(wheel, spec.NAMES)))
            print(f"{package} {version} against {last[0]}: " +
                  ("nothing has changed" if not lines else ""))
            print("\n".join(lines))
            return 1 if lines else 0
        table = {}
        for i, wanted in enumerate(spec.TESTED):
            wheel = install.fetch(venv, wanted, os.path.join(tmp, f"w{i}"))
            table[wanted.replace("==", " ")] = read(wheel, spec.NAMES)
    path = os.path.join(HERE, name, "signatures.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(table, f, indent=1)
        f.write("\n")
    print(f"wrote {path}")
    return 0
