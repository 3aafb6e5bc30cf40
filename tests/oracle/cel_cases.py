# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Selectors for `test_cel`: those that the engine and Kubernetes treat alike, and those that they treat differently."""

from __future__ import annotations

ATTRS = 'device.attributes["d.io"]'

# Five nested loops, each over ten numbers
LOOPS = "a + b + c + d + e < 9"
for name in "edcba":
    LOOPS = f"[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all({name}, {LOOPS})"

# Selectors with the same verdict, cost and result
SAME = f"""
true
false
"true"
1
null
x
true &&
true)
?!
a.b.c
device.foo == "x"
device["driver"] == "d.io"
device.driver
device.driver == "d.io"
device.driver == 1
device.driver == null
device.driver in ["a", "d.io"]
device.driver in []
!(device.driver in ["d.io"])
device.driver.matches("^d")
device.driver.matches("[")
device.driver.matches("\\\\C")
matches(device.driver, "[")
device.driver.matches(device.driver)
device.driver.size() > 3
bytes(device.driver).size() > 3
string(bytes(device.driver)) == "a"
strings.quote(device.driver) == "a"
device.allowMultipleAllocations
device.allowMultipleAllocations ? true : false
!device.allowMultipleAllocations
{ATTRS}.b
{ATTRS}.s
{ATTRS}["b"]
{ATTRS}.nothing
{ATTRS}.nothing == 1
has({ATTRS}.nothing)
has({ATTRS}.nothing.more)
!has({ATTRS}.nothing) || {ATTRS}.nothing == 1
{ATTRS}.s.x
device.attributes["none"].x == 1
has(device.attributes["none"].x)
has(device.attributes.none)
"none" in device.attributes
"d.io" in device.attributes
"none" in device.attributes || !has(device.attributes["none"].x)
device.attributes["none"].x == 1 || "none" in device.attributes
device.attributes[device.driver].i == 1
device.attributes[?"none"].hasValue()
device.attributes[?"none"].x.hasValue()
device.attributes.?none.hasValue()
{ATTRS}.?s.orValue("b") == "a"
device.attributes[?"d.io"].?s.orValue("b") == "a"
{ATTRS}.?nothing.orValue("") == ""
size(device.attributes) == 2
device.attributes.exists(d, device.attributes[d].s == "a")
device.attributes.all(d, has(device.attributes[d].z))
device.attributes.map(d, d).size() == 2
device.attributes.exists_one(d, d == "d.io")
{ATTRS}.exists_one(k, k == "i")
{ATTRS}.exists(k, {ATTRS}[k] == 1)
{ATTRS}.exists(k, v, v == 1)
{ATTRS}.all(k, k != "")
{ATTRS}.all(k, v, v == 1 || k == "a")
{ATTRS} == {ATTRS}
{ATTRS}.s.exists(x, x == 1)
device.attributes.all(x, device.attributes.all(y, device.attributes[x].all(z, device.attributes[y].all(w, z == w))))
cel.bind(a, {ATTRS}, a.exists(k, k == a.s))
cel.bind(a, {ATTRS}, a.exists(k, k == a["x"] || "abcde" + k == a.s))
cel.bind(a, {ATTRS}, [a.s, a.i].size() == a.q)
cel.bind(a, {ATTRS}, a.i + a.i == 2)
cel.bind(x, 1, cel.bind(x, "a", x == "a"))
device.capacity["d.io"].exists(k, device.capacity["d.io"][k].compareTo(quantity("1")) > 0)
device.capacity.all(d, device.capacity[d].all(k, k.startsWith("m")))
device.capacity["d.io"].m == quantity("5368709120")
device.capacity["o.io"].n == quantity("5")
device.capacity["d.io"].m == "5"
device.capacity["d.io"].m > quantity("1")
device.capacity["d.io"].m.isGreaterThan("4")
device.capacity["d.io"].m.isGreaterThan(quantity("1G"))
device.capacity["none"].m.isLessThan(quantity("1G"))
quantity("x") == quantity("1")
quantity(" 1") == quantity("1")
quantity("1") == 1
quantity("1").add(1) == quantity("2")
quantity("1").add(quantity("1")).compareTo(quantity("2")) == 0
quantity("1").sub(2).compareTo(quantity("-1")) == 0
quantity("1.5").asApproximateFloat() > 1.0
isQuantity("1Gi") && !isQuantity("1gi")
sign(quantity("-1")) == -1
quantity("-1").sign() == -1
{ATTRS}.v == "1.2.3"
"1.2.3" == {ATTRS}.v
{ATTRS}.v != "1.2.3"
{ATTRS}.v == {ATTRS}.s
{ATTRS}.s == {ATTRS}.v
{ATTRS}.v in ["1.2.3"]
{ATTRS}.v in [device.driver]
{ATTRS}.v == semver("1.2.3-rc.1")
semver("1.2.3-rc.1+other") == {ATTRS}.v
semver("1.2.3") == {ATTRS}.s
{ATTRS}.s == semver("1.2.3")
{ATTRS}.v > "1"
{ATTRS}.v.isLessThan(semver("1.2.3"))
{ATTRS}.s.isGreaterThan(semver("1.0.0"))
{ATTRS}.v.compareTo(semver("1.2.3-rc.1")) == 0
{ATTRS}.v.major() == 1 && {ATTRS}.v.minor() == 2 && {ATTRS}.v.patch() == 3
semver("1.2")  == semver("1.2.0")
semver("v1", true).compareTo(semver("1.0.0")) == 0
semver("01.02", true) == semver("1.2.0")
semver("1.0.0-alpha").isLessThan(semver("1.0.0"))
isSemver("1") || isSemver("v1.0", true)
isSemver({ATTRS}.q, true)
type({ATTRS}.i) == int
type({ATTRS}.i) in [int]
type({ATTRS}.v) in [type(semver("0.0.0"))]
type({ATTRS}.v) in [string]
dyn(true)
{ATTRS}.s == 1
{ATTRS}.i == 1.0
{ATTRS}.i in [1.0]
{ATTRS}.i < 2.5
{ATTRS}.i < {ATTRS}.s
{ATTRS}.s < {ATTRS}.s
{ATTRS}.i + 1 > 1
{ATTRS}.s + {ATTRS}.s == "aa"
{ATTRS}.i % 2 == 1
-{ATTRS}.i < 0
{ATTRS}.b && {ATTRS}.i > 0 || {ATTRS}.s < "b"
{ATTRS}.s.startsWith("a") ? true : false
{ATTRS}.i.startsWith("a")
{ATTRS}.s.matches({ATTRS}.s)
{ATTRS}.s.contains("abcdefghijklmnop")
{ATTRS}.s.lowerAscii() == "a"
{ATTRS}.s.trim() == "b"
{ATTRS}.s.split(",")[0] == "a"
{ATTRS}.s.split(",").exists(x, x == "a")
{ATTRS}.s.split(",", 2).size() < 3
{ATTRS}.s.substring(1).contains("aaaa")
{ATTRS}.s.replace("", "bbb").contains("aaaa")
{ATTRS}.s.replace("a", "bbb").contains("aaaa")
{ATTRS}.s.replace("aaa", "b").contains("aaaa")
{ATTRS}.s.indexOf("a") == 0
{ATTRS}.s.charAt(0) == "a"
["abc", device.driver].map(x, x + "a").join("-") == ""
(device.driver == "a" ? "x" : device.driver).contains("xxxxxxxxxxxx")
string({ATTRS}.s).contains("a")
[device.driver][0].contains("x")
{{"a": device.driver}}["a"].contains("x")
{{"a": device.driver}}.a.contains("x")
[1, {ATTRS}.i].size() == 2
["a", 1].size() == 1
[null, 1].size() == 1
[[], [1]].size() == 2
[dyn(1), "a"].size() == 1
[dyn(1), dyn("a")].size() == 2
{{"a": 1, "b": "x"}}.size() == 1
[?optional.of(1)].size() == 1
{{?"a": optional.of(1)}}.size() == 1
[].all(x, true)
[1, 2, 3].map(x, x * 2).exists(y, y == 4)
[1, 2, 3].filter(x, x > 1).size() == 2
[1, 2].transformList(i, v, v + i).size() == 2
[1, 2].exists(i, v, v == i)
[1, 2].existsOne(i, v, v == i)
["a"].exists(x, x.matches("a+"))
["a", "bc"].exists(x, device.driver.startsWith(x))
optional.of(1).optMap(y, y + 1).value() == 2
optional.of(device.driver).orValue("x").contains("yyyyyyyyyyyy")
optional.none().hasValue()
true ? 1 : "x"
1 == 1.5
1 in [1u]
1u == 1u
0x10 == 16
9223372036854775807 + 1 > 0
1 / 0 == 1
1 / 0 == 1 || true
"\\ud800" == "a"
"\\u00e9\\U0001F600" == "x"
duration("x") == duration("1s")
duration("1h") < duration("2h")
timestamp("2020-01-01T00:00:00Z").getFullYear() == 2020
timestamp("x") < timestamp("2020-01-01T00:00:00Z")
math.abs(1) == 1
{LOOPS}
""".strip().splitlines()

# Selectors with another verdict or result, by the rule in `test_cel.RULES` that explains the difference
DIFFERENT = {
    "unchecked": """
has(device.attributes)
device == device
size(device) == 1
1 < 1.5
"a".find("a") == "a"
[1, 2].sum() == 3
["a", "b"].indexOf("a") == 0
sets.contains([1], [1])
[1, 2].distinct().size() == 1
"%s".format([device.driver]) == "a"
"%s %d".format(["a", 1]) == "a"
url("https://a.io").getHost() == "a.io"
ip("10.0.0.1").family() == 4
[1].isSorted()
google.protobuf.Int32Value{value: 1} == 1
cel.bind(a, device.attributes, size(a) == 2)
cel.bind(a, device.attributes, has(a["n"].x))
{"a": 1}.transformMap(k, v, v + 1) == {"a": 2}
""",
    "version-as-map": 'device.attributes["d.io"].v.size() == 1',
    "sum-on-the-right": 'quantity("2") == quantity("1").add(1)',
    "integer-by-notation": 'quantity("1.5Gi").asInteger() > 1',
    "in-empty-list": 'device.attributes["d.io"].nothing in []',
    "split-of-empty-text": '"".split("").size() == 1',
}
