package strictyaml

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// found names what n is, for the words "expected, not".
func found(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return mappingName
	case null(n):
		return "an empty value"
	case textual(n):
		return fmt.Sprintf("the text %q", clip(n.Value))
	case n.Tag == boolTag:
		return n.Value
	}
	return "the number " + clip(n.Value)
}

// textual tells whether n is text. Dates are, and so is a lonely "<<".
func textual(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && (n.Tag == strTag || n.Tag == timeTag || n.Tag == mergeTag)
}

func numeric(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && (n.Tag == intTag || n.Tag == floatTag)
}

func (d *decoder) text(v reflect.Value, n *yaml.Node, at *path) {
	switch {
	case textual(n):
		v.SetString(n.Value)
	case null(n):
		d.wrong(n, at, "text is", ": write \"\" for empty text")
	case n.Kind == yaml.ScalarNode:
		d.wrong(n, at, "text is", fmt.Sprintf(": put it in quotes, %q", clip(n.Value)))
	default:
		d.wrong(n, at, "text is", "")
	}
}

func (d *decoder) truth(v reflect.Value, n *yaml.Node, at *path) {
	word := strings.ToLower(n.Value)
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == boolTag && (word == "true" || word == "false"):
		v.SetBool(word == "true")
	case textual(n) && (word == "true" || word == "false"):
		d.wrong(n, at, "true or false is", ": remove the quotes")
	case textual(n) && (word == "yes" || word == "on" || word == "y"):
		d.wrong(n, at, "true or false is", ": write true")
	case textual(n) && (word == "no" || word == "off" || word == "n"):
		d.wrong(n, at, "true or false is", ": write false")
	default:
		d.wrong(n, at, "true or false is", "")
	}
}

func (d *decoder) whole(v reflect.Value, n *yaml.Node, at *path) {
	const wanted = "a whole number is"
	digits := strings.TrimLeft(n.Value, "+-")
	switch {
	case !numeric(n):
		d.wrong(n, at, wanted, numberRemedy(n))
		return
	case len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9':
		d.wrong(n, at, wanted, ": a 0 in front may mean octal, remove it")
		return
	}
	switch bounds, err := setWhole(v, n.Value); {
	case errors.Is(err, strconv.ErrRange):
		d.fail(n, at, CodeOutOfRange, "%s is out of range (%s)", clip(n.Value), bounds)
	case err != nil:
		d.wrong(n, at, wanted, "")
	}
}

// setWhole sets an integer of any size, and returns what the size allows.
func setWhole(v reflect.Value, text string) (bounds string, err error) {
	bits := v.Type().Bits()
	if v.CanInt() {
		i, err := strconv.ParseInt(text, 0, bits)
		if err == nil {
			v.SetInt(i)
		}
		return fmt.Sprintf("%d to %d", math.MinInt64>>(64-bits), math.MaxInt64>>(64-bits)), err
	}
	if digits, negative := strings.CutPrefix(text, "-"); negative {
		text, err = digits, strconv.ErrRange
	}
	u, malformed := strconv.ParseUint(strings.TrimPrefix(text, "+"), 0, bits)
	if malformed != nil {
		err = malformed
	}
	if err == nil {
		v.SetUint(u)
	}
	return fmt.Sprintf("0 to %d", uint64(math.MaxUint64)>>(64-bits)), err
}

func (d *decoder) number(v reflect.Value, n *yaml.Node, at *path) {
	f, err := strconv.ParseFloat(n.Value, 64)
	switch {
	case !numeric(n) || err != nil && !errors.Is(err, strconv.ErrRange):
		d.wrong(n, at, "a number is", numberRemedy(n))
	case err != nil || v.OverflowFloat(f):
		d.fail(n, at, CodeOutOfRange, "%s is out of range", clip(n.Value))
	default:
		v.SetFloat(f)
	}
}

func numberRemedy(n *yaml.Node) string {
	quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
	if _, err := strconv.ParseFloat(n.Value, 64); err == nil && quoted {
		return ": remove the quotes"
	}
	return ""
}

func (d *decoder) time(v reflect.Value, n *yaml.Node, at *path) {
	t, err := time.Parse(time.RFC3339, n.Value)
	if !textual(n) || err != nil {
		d.wrong(n, at, "a time is", ": write it as in 2026-01-31T12:00:00Z")
		return
	}
	v.Set(reflect.ValueOf(t))
}

func (d *decoder) duration(v reflect.Value, n *yaml.Node, at *path) {
	duration, err := time.ParseDuration(n.Value)
	if !textual(n) && !numeric(n) || err != nil {
		d.wrong(n, at, "a duration is", ": write it with its unit, as in 500ms, 30s or 1m30s")
		return
	}
	v.SetInt(int64(duration))
}

func (d *decoder) enum(v reflect.Value, n *yaml.Node, at *path, names map[string]int64, ordered []string) {
	list := strings.Join(ordered, ", ")
	remedy := ""
	if !textual(n) {
		for _, name := range ordered {
			if n.Tag == intTag && n.Value == strconv.FormatInt(names[name], 10) {
				remedy = ": write " + name
			}
		}
		d.wrong(n, at, "one of "+list+" is", remedy)
		return
	}
	number, ok := names[n.Value]
	if !ok {
		if meant := Suggest(n.Value, ordered); meant != "" {
			remedy = fmt.Sprintf("; did you mean %q?", meant)
		}
		d.fail(n, at, CodeUnknownValue, "%q is none of %s%s", clip(n.Value), list, remedy)
		return
	}
	v.SetInt(number)
}

// unmarshal gives a type that reads itself the text as it is written.
func (d *decoder) unmarshal(reader encoding.TextUnmarshaler, n *yaml.Node, at *path) {
	if n.Kind != yaml.ScalarNode || null(n) {
		d.wrong(n, at, "text is", "")
		return
	}
	if err := reader.UnmarshalText([]byte(n.Value)); err != nil {
		d.fail(n, at, CodeUnknownValue, "%s", err)
	}
}

// natural returns n as what it looks like: a map with string keys, a list, text,
// true or false, int64, float64, or nil.
func natural(n *yaml.Node) any {
	switch {
	case n.Kind == yaml.MappingNode:
		all := make(map[string]any, len(n.Content)/2)
		for p := range pairs(n) {
			if _, ok := all[p.key.Value]; !ok {
				all[p.key.Value] = natural(p.value)
			}
		}
		return all
	case n.Kind == yaml.SequenceNode:
		all := make([]any, len(n.Content))
		for i, item := range n.Content {
			all[i] = natural(target(item))
		}
		return all
	case null(n):
		return nil
	case textual(n):
		return n.Value
	case n.Tag == boolTag:
		return strings.EqualFold(n.Value, "true")
	}
	if i, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
		return i
	}
	if f, err := strconv.ParseFloat(n.Value, 64); err == nil {
		return f
	}
	return n.Value
}
