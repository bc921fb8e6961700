package consulreg

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
)

// bare are the recognised keys that count in meta without MetaPrefix as well: others have established them.
var bare = []string{"protocol", "version", "weight"}

// said is what an instance says of one of the keys that meshd recognises, and where: in its meta, else in its tags.
func (r *Rules) said(i *instance, key string) (value, field string) {
	prefixed := r.MetaPrefix + key
	if value = i.Meta[prefixed]; value != "" {
		return value, "meta." + prefixed
	}
	if value = i.Meta[key]; value != "" && slices.Contains(bare, key) {
		return value, "meta." + key
	}
	for _, tag := range i.Tags {
		if value = r.valueIn(tag, prefixed); value != "" {
			return value, "tags"
		}
	}
	return "", ""
}

// recognise reads what an instance says of a key. If that is nothing, or wrong, which is reported, it is otherwise.
func recognise[T any](t *translation, i *instance, key string, parse func(string) (T, error), otherwise T) T {
	text, field := t.said(i, key)
	if text == "" {
		return otherwise
	}
	value, err := parse(text)
	if err != nil {
		t.report(mesh.Warning, "consul-bad-meta", t.instanceOrigin(i), field, fmt.Sprintf("%q %v; it is ignored", text, err))
		return otherwise
	}
	return value
}

func parseText(s string) (string, error) { return s, nil }

func parseProtocol(s string) (mesh.Protocol, error) {
	p, ok := mesh.ParseProtocol(s)
	if !ok {
		return mesh.Sniffed, fmt.Errorf("is not a protocol; write one of %s", strings.Join(mesh.ProtocolNames(), ", "))
	}
	return p, nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, errors.New("is not a port number; write one from 1 to 65535")
	}
	return uint16(n), nil
}

func parsePortName(s string) (string, error) {
	s = strings.ToLower(s)
	if !mesh.IsLabel(s) {
		return "", errors.New("is not a port name; write at most 63 letters, digits and inner hyphens")
	}
	return s, nil
}

func parseWeight(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("is not a weight; write a number from 0 to %d", maxWeight)
	}
	return int(n), nil
}

// labels are an instance's tags and meta. Meta wins over tags, which Consul has no order for, and the recognised version
// over both.
func (t *translation) labels(i *instance) map[string]string {
	labels := map[string]string{}
	for _, tag := range slices.Backward(i.Tags) { // the first of one key wins, as in said
		switch key, value, ok := t.cut(tag); {
		case ok:
			labels[key] = value
		case tag != "":
			labels["tag/"+tag] = "true"
		}
	}
	maps.Copy(labels, i.Meta)
	delete(labels, "")
	if version, _ := t.said(i, "version"); version != "" {
		labels["version"] = version
	}
	return labels
}
