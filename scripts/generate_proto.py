"""Turns proto/ into committed Python, and into descriptor sets for buf.

Runs inside .venv-proto, whose older generator writes code that both older and newer protobuf
runtimes load; the Makefile targets `proto`, `proto-release` and `check` call it.

    generate_proto.py generate             rewrite liveness/v1
    generate_proto.py check                fail if the committed code differs from what proto/ generates
    generate_proto.py descriptors FILE     all descriptors with comments, for buf lint
    generate_proto.py baseline FILE        descriptors without comments, for buf breaking
"""

import argparse
import filecmp
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parent.parent
PROTO_ROOT = ROOT / "proto"
GENERATED = Path("liveness/v1")
COMMENTS = "comments.json"
GENERATED_PATTERNS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi", COMMENTS)


def proto_files() -> list[Path]:
    return sorted(PROTO_ROOT.rglob("*.proto"))


def with_services(protos: list[Path]) -> list[Path]:
    return [proto for proto in protos if re.search(r"^service ", proto.read_text(), re.MULTILINE)]


def protoc(options: list[str], protos: list[Path]) -> None:
    # googleapis-common-protos installs google/rpc/*.proto into site-packages, which makes that folder
    # an include path; grpc_tools adds google/protobuf/*.proto by itself.
    includes = [f"--proto_path={PROTO_ROOT}", f"--proto_path={sysconfig.get_path('purelib')}"]
    names = [proto.relative_to(PROTO_ROOT).as_posix() for proto in protos]
    finished = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *includes, *options, *names], check=False
    )
    if finished.returncode != 0:
        sys.exit(finished.returncode)


def generate_into(out: Path) -> None:
    scripts = Path(sysconfig.get_path("scripts"))
    plugins = [f"--plugin={name}={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    protos = proto_files()
    protoc([*plugins, f"--python_out={out}", f"--mypy_out=quiet:{out}"], protos)
    protoc([*plugins, f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}"], with_services(protos))
    write_comments(out / GENERATED / COMMENTS)


def write_comments(target: Path) -> None:
    """Write the comments of proto/ by full name: generated code lacks them, and the OpenAPI document needs them."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.binpb"
        write_descriptors(whole, with_comments=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(whole.read_bytes()).file
    found: dict[str, str] = {}
    for file in files:
        if file.package == "liveness.v1":
            for location in file.source_code_info.location:
                text = "\n".join(
                    line.strip() for line in location.leading_comments.splitlines() if "buf:lint" not in line
                ).strip()
                if text and (name := full_name(file, list(location.path))):
                    found[name] = text
    target.write_text(
        json.dumps(found, ensure_ascii=False, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def full_name(file: descriptor_pb2.FileDescriptorProto, path: list[int]) -> str:
    """Return the full name of the element at a path as descriptor.proto describes it: pairs of a field's number and an
    index.
    """
    thing: Any = file
    names = [file.package]
    for number, index in zip(path[::2], path[1::2], strict=False):
        field = thing.DESCRIPTOR.fields_by_number.get(number)
        if field is None or field.message_type is None or not field.is_repeated:
            return ""
        thing = getattr(thing, field.name)[index]
        names.append(thing.name)
    return "" if len(path) % 2 or not path else ".".join(names)


def generated_files(root: Path) -> set[str]:
    return {path.name for pattern in GENERATED_PATTERNS for path in (root / GENERATED).glob(pattern)}


def generate() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate_into(fresh)
        for gone in generated_files(ROOT) - generated_files(fresh):
            (ROOT / GENERATED / gone).unlink()
        for name in sorted(generated_files(fresh)):
            shutil.copyfile(fresh / GENERATED / name, ROOT / GENERATED / name)
            print(f"  {GENERATED / name}")


def check() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate_into(fresh)
        names = generated_files(ROOT) | generated_files(fresh)
        _, changed, missing = filecmp.cmpfiles(ROOT / GENERATED, fresh / GENERATED, names, shallow=False)
    outdated = sorted(changed + missing)
    if outdated:
        listing = "\n".join(f"  {GENERATED / name}" for name in outdated)
        sys.exit(f"Generated code differs from proto/; run make proto and commit the result:\n{listing}")


def write_descriptors(target: Path, *, with_comments: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    options = [f"--descriptor_set_out={target}", "--include_imports"]
    if with_comments:
        options.append("--include_source_info")
    protoc(options, proto_files())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("generate")
    commands.add_parser("check")
    for name in ("descriptors", "baseline"):
        commands.add_parser(name).add_argument("target", type=Path)
    arguments = parser.parse_args()
    match arguments.command:
        case "generate":
            generate()
        case "check":
            check()
        case "descriptors":
            write_descriptors(arguments.target, with_comments=True)
        case "baseline":
            write_descriptors(arguments.target, with_comments=False)


if __name__ == "__main__":
    main()
