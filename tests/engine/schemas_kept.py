"""Schemas over every keyword that is enforced, and schemas that are refused with the place that is wrong."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string", "maxLength": 12}
NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": 999}


def record(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    """A closed object; everything in it is required unless it is said what is."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


def array(items: Any, least: int = 0, most: int = 4) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


NODE = record({"value": NUMBER, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})
TREE = record({"name": TEXT, "left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "right": {"type": "null"}})
BY_PLACE = record(
    {
        "first": {"anyOf": [{"type": "null"}, record({"n": NUMBER})]},
        "second": {"$ref": "#/properties/first/anyOf/1"},
        "third": {"$ref": "#/properties/first/anyOf/1/properties/n"},
    }
)
SHAPES = [record({"kind": {"const": "circle"}, "radius": NUMBER}), record({"kind": {"const": "line"}, "to": NUMBER})]

KEPT: dict[str, Schema] = {
    # types
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "several types": {"type": ["string", "null", "boolean"]},
    "any object": {"type": "object"},
    "any array": {"type": "array", "maxItems": 3},
    "anything": {},
    "nullable in a record": record({"a": {"type": ["integer", "null"]}}),
    # values
    "enum of texts": {"enum": ["red", "green", "blue"]},
    "enum of all kinds": {"enum": ["ä", "日本", "🙂", 1, 2.5, None, True, [1, "x"], {"k": "v"}]},
    "enum with a type": {"type": "string", "enum": ["on", "off", 3]},
    "const text": {"const": 'a "quoted" \\ text\n'},
    "const object": {"const": {"a": [1, {"b": None}], "c": 1.5}},
    "const in a record": record({"version": {"const": 2}, "name": TEXT}),
    # texts
    "minLength": {"type": "string", "minLength": 5, "maxLength": 40},
    "maxLength": {"type": "string", "maxLength": 3},
    "exact length": {"type": "string", "minLength": 4, "maxLength": 4},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern without anchors": {"type": "string", "pattern": "[0-9]{2}", "maxLength": 20},
    "pattern at the start": {"type": "string", "pattern": "^id_", "maxLength": 20},
    "pattern of alternatives": {"type": "string", "pattern": "^(yes|no|perhaps)$"},
    "pattern with classes": {"type": "string", "pattern": "^\\w{1,4}\\s\\d+\\.\\d{2}$", "maxLength": 20},
    "pattern and length": {"type": "string", "pattern": "^[ab]*$", "minLength": 3, "maxLength": 9},
    # formats
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "email": {"type": "string", "format": "email", "maxLength": 40},
    "hostname": {"type": "string", "format": "hostname", "maxLength": 40},
    "uri": {"type": "string", "format": "uri", "maxLength": 60},
    # numbers
    "minimum": {"type": "integer", "minimum": 17},
    "maximum": {"type": "integer", "maximum": -3},
    "between": {"type": "integer", "minimum": -12, "maximum": 345},
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "fractions between": {"type": "number", "minimum": 0.25, "maximum": 1.75},
    "fractions above": {"type": "number", "exclusiveMinimum": 0},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    "a percentage": record({"share": {"type": "number", "minimum": 0, "maximum": 100}}),
    # arrays
    "items": array(NUMBER),
    "minItems": array(TEXT, least=2),
    "exactly three": array({"type": "boolean"}, least=3, most=3),
    "no items at all": {"type": "array", "maxItems": 0},
    "prefixItems": {"type": "array", "prefixItems": [TEXT, NUMBER], "items": False, "minItems": 2},
    "prefixItems and more": {"type": "array", "prefixItems": [TEXT], "items": NUMBER, "minItems": 1, "maxItems": 4},
    "arrays of arrays": array(array(NUMBER, 1, 2), 1, 3),
    "arrays of records": array(record({"n": NUMBER, "t": TEXT}), 1, 2),
    # objects
    "record": record({"name": TEXT, "age": NUMBER}),
    "optional members": record({"a": NUMBER, "b": TEXT, "c": {"type": "null"}}, required=["b"]),
    "nothing required": record({"a": NUMBER, "b": TEXT}, required=[]),
    "empty record": record({}),
    "names of all kinds": record({"": NUMBER, "with space": NUMBER, "ä/ö~": NUMBER, 'q"': NUMBER}),
    "a map": {"type": "object", "additionalProperties": NUMBER, "maxProperties": 3},
    "required beyond properties": {"type": "object", "required": ["x"], "additionalProperties": NUMBER},
    "patternProperties": {"type": "object", "patternProperties": {"^n_": NUMBER}, "additionalProperties": False},
    "open record": {"type": "object", "properties": {"a": NUMBER}, "required": ["a"], "additionalProperties": TEXT},
    "minProperties": {"type": "object", "minProperties": 1, "additionalProperties": NUMBER},
    "minProperties that are required": record({"a": NUMBER, "b": NUMBER}, minProperties=2),
    "records in records": record({"a": record({"b": record({"c": NUMBER})})}),
    "an impossible optional member": record({"a": False, "b": NUMBER}, required=["b"]),
    # combinations
    "anyOf": {"anyOf": [NUMBER, {"type": "string", "pattern": "^n/a$"}]},
    "anyOf of records": {"anyOf": SHAPES},
    "oneOf of kinds": {"oneOf": SHAPES},
    "allOf": {"allOf": [{"type": "string", "pattern": "^[a-f]+$"}, {"minLength": 3, "maxLength": 8}]},
    "allOf of definitions": {
        "$defs": {
            "named": {"type": "object", "properties": {"name": TEXT}, "required": ["name"]},
            "aged": {"type": "object", "properties": {"age": NUMBER}, "required": ["age"]},
        },
        "allOf": [{"$ref": "#/$defs/named"}, {"$ref": "#/$defs/aged"}],
        "additionalProperties": False,
        "properties": {"name": True, "age": True},
    },
    "properties beside anyOf": {
        "type": "object",
        "properties": {"id": NUMBER, "to": True},
        "required": ["id"],
        "anyOf": [{"properties": {"to": {"const": "a"}}, "required": ["to"]}, {"properties": {"to": {"const": "b"}}}],
        "additionalProperties": False,
    },
    # references
    "$ref": {"$ref": "#/$defs/n", "$defs": {"n": NUMBER}},
    "$ref in items": array({"$ref": "#/$defs/n"}) | {"$defs": {"n": NUMBER}},
    "definitions": record({"a": {"$ref": "#/definitions/t"}}) | {"definitions": {"t": TEXT}},
    "$ref with escapes": {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": NUMBER}},
    "$ref and more": {"$ref": "#/$defs/t", "minLength": 2, "$defs": {"t": TEXT}},
    "$ref by place": BY_PLACE,
    "$anchor": {"$ref": "#number", "$defs": {"n": {"$anchor": "number", **NUMBER}}},
    "a list that refers to itself": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "a tree of its root": TREE,
    "two that refer to each other": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": record({"b": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/b"}]}}),
            "b": record({"a": array({"$ref": "#/$defs/a"}, 0, 2)}),
        },
    },
    # words that ask for nothing
    "annotations": record(
        {"a": {**NUMBER, "title": "t", "description": "d", "default": 1, "examples": [1], "deprecated": True}}
    )
    | {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/a", "$comment": "c"},
    "an older draft": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [TEXT, NUMBER],
        "additionalItems": False,
        "minItems": 2,
    },
    "a name nobody knows": {"type": "integer", "maximum": 5, "x-order": 3},
    "as a client's library writes it": {
        "$defs": {"Step": record({"explanation": TEXT, "output": TEXT})},
        **record({"steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "maxItems": 3}, "final": TEXT}),
        "title": "MathReasoning",
    },
}

# A schema, the place that is wrong, and a word of the sentence.
REFUSED: list[tuple[Schema, str, str]] = [
    (record({"a": {"not": {"type": "null"}}}), "properties.a.not", "`not`"),
    (record({"a": {"type": "array", "uniqueItems": True}}), "properties.a.uniqueItems", "`uniqueItems`"),
    (array({"type": "array", "contains": NUMBER}), "items.contains", "`contains`"),
    ({"if": {"type": "null"}, "then": {}, "else": {}}, "if", "`if`"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames", "`propertyNames`"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired", "`dependentRequired`"),
    ({"type": "object", "dependentSchemas": {"a": {}}}, "dependentSchemas", "`dependentSchemas`"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties", "`unevaluatedProperties`"),
    ({"$dynamicRef": "#a"}, "$dynamicRef", "`$dynamicRef`"),
    (record({"a": {"type": "string", "pattern": "(?=x)y"}}), "properties.a.pattern", "look-around"),
    (record({"a": {"type": "string", "pattern": "(a)\\1"}}), "properties.a.pattern", "backreferences"),
    (record({"a": {"type": "string", "pattern": "\\bword"}}), "properties.a.pattern", "cannot be enforced"),
    (record({"a": {"type": "string", "pattern": "(a"}}), "properties.a.pattern", "unclosed"),
    (record({"a": {"type": "string", "format": "json-pointer"}}), "properties.a.format", "`json-pointer`"),
    ({"anyOf": [NUMBER, {"type": "string", "format": "regex"}]}, "anyOf.1.format", "`regex`"),
    ({"oneOf": [TEXT, {"type": "string", "minLength": 3}]}, "oneOf", "write `anyOf`"),
    (record({"a": {"$ref": "#/$defs/b"}}), "properties.a.$ref", "`#/$defs/b`"),
    (record({"a": {"$ref": "https://example.com/s"}}), "properties.a.$ref", "same schema"),
    (record({"a": {"$ref": "#/$defs/b"}}) | {"$defs": {"b": {"not": {}}}}, "$defs.b.not", "`not`"),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}, "$defs.n", "without end"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": record({"a": {"$ref": "#/$defs/a"}})}},
        "$defs.a",
        "without end",
    ),
    (
        record({"list": {"$ref": "#/$defs/a"}})
        | {"$defs": {"a": array({"$ref": "#/$defs/b"}, 1), "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        "$defs.a",
        "without end",
    ),
    (record({"self": {"$ref": "#"}}), "", "without end"),
    (record({"a": {"type": "integer", "minimum": 5, "maximum": 2}}), "properties.a.maximum", "no value"),
    (record({"a": {"type": "string", "minLength": 5, "maxLength": 2}}), "properties.a.maxLength", "no value"),
    (record({"a": {"allOf": [TEXT, NUMBER]}}), "properties.a.allOf", "no value"),
    (record({"a": False}), "properties.a", "no value"),
    (record({"a": {"enum": []}}), "properties.a.enum", "no value"),
    (record({"a": {"type": "strin"}}), "properties.a.type", "strin"),
    (record({"a": {"type": "string", "minLength": -1}}), "properties.a.minLength", "positive"),
    (record({"a": {"type": "string", "minLength": 65_537}}), "properties.a.minLength", "65,536 characters or items"),
    (array(array(NUMBER, 300, 300), 300, 300), "items.minItems", "65,536 characters or items"),
    (record({"a": {"type": "number", "multipleOf": 0}}), "properties.a.multipleOf", "multiple"),
    (record({"a": {"type": "integer", "multipleOf": 999_999_937}}), "properties.a.multipleOf", "too complex"),
    ({"type": "object", "patternProperties": {"^x": {}, "y$": {}}}, "patternProperties", "disjoint"),
    ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, "minProperties", "required"),
    ({"items": {"type": "object", "minProperties": 2}}, "items.minProperties", "more than 1"),
    (record({"a": {"type": "integer", "maximum": -1e30}}), "properties.a.maximum", "integer range"),
]
