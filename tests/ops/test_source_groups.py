"""cmake/source_groups.py: which sources are compiled together."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("source_groups", ROOT / "cmake/source_groups.py")
source_groups = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(source_groups)


def together(first, second):
    """Whether two sources of these texts may be compiled as one."""
    made = source_groups.groups([("a.cc", first), ("b.cc", second)])
    return len(made) == 1


def test_files_that_define_no_name_twice_meet():
    assert together("namespace {\nint One() { return 1; }\n", "namespace {\nint Two();\n")


def test_the_same_namespace_keeps_nobody_apart():
    assert together("namespace cairn {\nint One() {}\n", "namespace cairn {\nint Two();\n")


def test_a_name_with_two_definitions_keeps_files_apart():
    for line in (
        "static int Helper(int a) {",
        "namespace {\nint Helper(int a) {",
        "constexpr int kOne = 1, kHelper = 2;",
        "struct Helper {",
        "#define Helper 1",
    ):
        name = "kHelper" if "kHelper" in line else "Helper"
        assert not together(line, f"double {name}() {{"), line


def test_overloads_that_headers_declare_meet():
    assert together("int ToProto(const A& a) {", "int ToProto(const B& b) {")
    assert not together("int ToProto(const A& a) {", "int ToProto(const A& a) {")
    assert not together("int ToProto(const A& a) {", "namespace {\nint ToProto(const B& b) {")
    assert together("namespace {\n}  // namespace\nint F(int a) {", "int F() {")


def test_aliases_with_one_meaning_meet_and_with_two_do_not():
    assert together("using Json = nlohmann::json;", "using Json = nlohmann::json;")
    assert not together("using Json = nlohmann::json;", "using Json = nlohmann::ordered_json;")
    assert together("namespace asio = boost::asio;", "namespace asio = boost::asio;")
    assert not together("namespace asio = boost::asio;", "namespace asio = other::asio;")
    assert together("using cairn::fuzz::Expect;", "using fuzz::Expect;")
    assert not together("using fuzz::Expect;", "using check::Expect;")
    assert not together("using Json = nlohmann::json;", "struct Json {")


def test_only_files_that_open_the_same_namespaces_meet():
    assert together("using namespace cairn;", "using namespace cairn;")
    assert not together("using namespace cairn;", "int One();")
    assert together("int Two() {\n  using namespace cairn;", "int One();")


def test_testing_means_one_thing_in_a_group():
    ours = '#include "tests/support/process.h"\nusing testing::Child;'
    assert not together(ours, "using testing::HasSubstr;")


def test_a_group_has_a_size():
    comment = "// " + "x" * (source_groups.GROUP_BYTES * 2 // 3) + "\n"
    assert not together(comment, comment)
