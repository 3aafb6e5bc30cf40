# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Selectors for `test_cel`: those with the same result as in Kubernetes, and those that need a rule."""

from __future__ import annotations

D = 'device.attributes["d.io"]'

# Five nested loops
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
{D}.b
{D}.s
{D}["b"]
{D}.nothing
{D}.nothing == 1
has({D}.nothing)
has({D}.nothing.more)
!has({D}.nothing) || {D}.nothing == 1
{D}.s.x
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
{D}.?s.orValue("b") == "a"
device.attributes[?"d.io"].?s.orValue("b") == "a"
{D}.?nothing.orValue("") == ""
size(device.attributes) == 2
device.attributes.exists(d, device.attributes[d].s == "a")
device.attributes.all(d, has(device.attributes[d].z))
device.attributes.map(d, d).size() == 2
device.attributes.exists_one(d, d == "d.io")
{D}.exists_one(k, k == "i")
{D}.exists(k, {D}[k] == 1)
{D}.exists(k, v, v == 1)
{D}.all(k, k != "")
{D}.all(k, v, v == 1 || k == "a")
{D} == {D}
{D}.s.exists(x, x == 1)
device.attributes.all(x, device.attributes.all(y, device.attributes[x].all(z, device.attributes[y].all(w, z == w))))
cel.bind(a, {D}, a.exists(k, k == a.s))
cel.bind(a, {D}, a.exists(k, k == a["x"] || "abcde" + k == a.s))
cel.bind(a, {D}, [a.s, a.i].size() == a.q)
cel.bind(a, {D}, a.i + a.i == 2)
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
{D}.v == "1.2.3"
"1.2.3" == {D}.v
{D}.v != "1.2.3"
{D}.v == {D}.s
{D}.s == {D}.v
{D}.v in ["1.2.3"]
{D}.v in [device.driver]
{D}.v == semver("1.2.3-rc.1")
semver("1.2.3-rc.1+other") == {D}.v
semver("1.2.3") == {D}.s
{D}.s == semver("1.2.3")
{D}.v > "1"
{D}.v.isLessThan(semver("1.2.3"))
{D}.s.isGreaterThan(semver("1.0.0"))
{D}.v.compareTo(semver("1.2.3-rc.1")) == 0
{D}.v.major() == 1 && {D}.v.minor() == 2 && {D}.v.patch() == 3
semver("1.2")  == semver("1.2.0")
semver("v1", true).compareTo(semver("1.0.0")) == 0
semver("01.02", true) == semver("1.2.0")
semver("1.0.0-alpha").isLessThan(semver("1.0.0"))
isSemver("1") || isSemver("v1.0", true)
isSemver({D}.q, true)
type({D}.i) == int
type({D}.i) in [int]
type({D}.v) in [type(semver("0.0.0"))]
type({D}.v) in [string]
dyn(true)
{D}.s == 1
{D}.i == 1.0
{D}.i in [1.0]
{D}.i < 2.5
{D}.i < {D}.s
{D}.s < {D}.s
{D}.i + 1 > 1
{D}.s + {D}.s == "aa"
{D}.i % 2 == 1
-{D}.i < 0
{D}.b && {D}.i > 0 || {D}.s < "b"
{D}.s.startsWith("a") ? true : false
{D}.i.startsWith("a")
{D}.s.matches({D}.s)
{D}.s.contains("abcdefghijklmnop")
{D}.s.lowerAscii() == "a"
{D}.s.trim() == "b"
{D}.s.split(",")[0] == "a"
{D}.s.split(",").exists(x, x == "a")
{D}.s.split(",", 2).size() < 3
{D}.s.substring(1).contains("aaaa")
{D}.s.replace("", "bbb").contains("aaaa")
{D}.s.replace("a", "bbb").contains("aaaa")
{D}.s.replace("aaa", "b").contains("aaaa")
{D}.s.indexOf("a") == 0
{D}.s.charAt(0) == "a"
["abc", device.driver].map(x, x + "a").join("-") == ""
(device.driver == "a" ? "x" : device.driver).contains("xxxxxxxxxxxx")
string({D}.s).contains("a")
[device.driver][0].contains("x")
{{"a": device.driver}}["a"].contains("x")
{{"a": device.driver}}.a.contains("x")
[1, {D}.i].size() == 2
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
    "whole-by-form": 'quantity("1.5Gi").asInteger() > 1',
    "in-nothing": 'device.attributes["d.io"].nothing in []',
    "split-of-nothing": '"".split("").size() == 1',
}
