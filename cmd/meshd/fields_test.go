package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFieldDifferences(t *testing.T) {
	for name, tt := range map[string]struct{ old, new, want string }{
		"nothing":                           {`{"a": [1, {"b": null}]}`, `{"a": [1, {"b": null}]}`, ``},
		"a value":                           {`{"a": {"b": 1}}`, `{"a": {"b": 2}}`, `~ a.b: 1 -> 2`},
		"another type":                      {`{"a": {"b": 1}}`, `{"a": [1]}`, `~ a: {"b":1} -> [1]`},
		"keys that come and go":             {`{"a": 1, "b": {}}`, `{"b": {}, "c": {"d": "<"}}`, "- a: 1\n+ c: {\"d\":\"<\"}"},
		"a key with a dot":                  {`{"a": {"x.y": 1}}`, `{"a": {"x.y": 2}}`, `~ a[x.y]: 1 -> 2`},
		"a null is a value":                 {`{"a": null}`, `{}`, `- a: null`},
		"words of a list":                   {`{"a": ["x", "y"]}`, `{"a": ["z", "x"]}`, "- a: \"y\"\n+ a: \"z\""},
		"items by name":                     {`{"a": [{"name": "x", "v": 1}, {"name": "y"}]}`, `{"a": [{"name": "y"}, {"name": "x", "v": 2}]}`, "~ a[x].v: 1 -> 2\n~ a: is in another order"},
		"items without a name":              {`{"a": [{"v": 1}, {"v": 2}]}`, `{"a": [{"v": 1}, {"v": 3}, {"v": 4}]}`, "~ a[1].v: 2 -> 3\n+ a[2]: {\"v\":4}"},
		"items of one name":                 {`{"a": [{"name": "x"}, {"name": "x", "v": 1}]}`, `{"a": [{"name": "x"}, {"name": "x", "v": 2}]}`, `~ a[1].v: 1 -> 2`},
		"a word that is there twice":        {`{"a": ["x", "x"]}`, `{"a": ["x", "y"]}`, `~ a[1]: "x" -> "y"`},
		"filter chains by match":            {`[{"filter_chain_match": {"p": 1}, "filters": []}, {"filters": []}]`, `[{"filter_chain_match": {"p": 2}, "filters": []}, {"filters": [{"name": "f"}]}]`, "- [match {\"p\":1}]: {\"filter_chain_match\":{\"p\":1},\"filters\":[]}\n+ [no match].filters[f]: {\"name\":\"f\"}\n+ [match {\"p\":2}]: {\"filter_chain_match\":{\"p\":2},\"filters\":[]}"},
		"endpoints by address and locality": {`[{"locality": {"region": "eu", "zone": "1"}, "lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": "/x"}}}}]}]`, `[{"locality": {"region": "eu", "zone": "1"}, "lb_endpoints": []}]`, `- [eu/1].lb_endpoints[{"pipe":{"path":"/x"}}]: {"endpoint":{"address":{"pipe":{"path":"/x"}}}}`},
		"what is long and gone":             {`{"a": "` + strings.Repeat("x", 200) + `"}`, `{}`, `- a`},
		"what is long and new":              {`{}`, `{"a": [{"name": "` + strings.Repeat("x", 120) + `", "e": [], "o": {}, "l": [1, 1]}]}`, "+ a\n    [" + strings.Repeat("x", 120) + "].e: []\n    [" + strings.Repeat("x", 120) + "].l[0]: 1\n    [" + strings.Repeat("x", 120) + "].l[1]: 1\n    [" + strings.Repeat("x", 120) + "].name: \"" + strings.Repeat("x", 120) + "\"\n    [" + strings.Repeat("x", 120) + "].o: {}"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range fieldDifferences(decode(json.RawMessage(tt.old)), decode(json.RawMessage(tt.new))) {
				got = append(got, f.lines()...)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
