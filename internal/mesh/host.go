package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Host is a lower-case DNS name whose first label may be "*". Only [ParseHost] makes one; the zero Host is no name.
type Host struct{ name string }

// ParseHost reads a host as ServiceEntry's spec.hosts takes it: labels of 1 to 63 letters, digits and inner
// hyphens, 253 characters in all, "*" only as the whole first label and not alone, no trailing dot, and a last
// label that is not a number. The error says what to write instead.
func ParseHost(s string) (Host, error) {
	rest, wildcard := strings.CutPrefix(s, "*.")
	switch {
	case s == "":
		return Host{}, errors.New("is empty; write a DNS name such as payments.mesh.internal")
	case s == "*":
		return Host{}, errors.New(`may not be "*" alone; write the domain whose hosts are meant, such as "*.example.org"`)
	case strings.HasSuffix(s, "."):
		return Host{}, fmt.Errorf("has a trailing dot; write %q", strings.TrimRight(s, "."))
	case strings.Contains(rest, "*"):
		return Host{}, errors.New(`has "*" elsewhere than as its whole first label; write it as in "*.example.org"`)
	}
	if err := checkName(rest); err != nil {
		return Host{}, err
	}
	name := strings.ToLower(rest)
	if wildcard {
		name = "*." + name
	}
	return Host{name}, nil
}

// IsHostName tells whether s is a full host name: one that [ParseHost] takes, and no wildcard.
func IsHostName(s string) bool {
	h, err := ParseHost(s)
	return err == nil && !h.Wildcard()
}

func checkName(s string) error {
	if len(s) > 253 {
		return fmt.Errorf("has %d characters; a DNS name has at most 253", len(s))
	}
	labels := strings.Split(s, ".")
	for _, l := range labels {
		switch {
		case l == "":
			return errors.New("has an empty label; remove the doubled or leading dot")
		case len(l) > 63:
			return fmt.Errorf("has a label of %d characters; a label has at most 63", len(l))
		case !isLabel(l):
			return fmt.Errorf("has the label %q; a label is made of letters, digits and inner hyphens", l)
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" {
		return errors.New("ends in a number, as an IP address does; write a DNS name here, and an IP address under addresses or endpoints")
	}
	return nil
}

// isLabel tells whether s is made of letters, digits and inner hyphens, in any letter case.
func isLabel(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-' && 0 < i && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}

// IsLabel tells whether s is a DNS label as Kubernetes names have it (RFC 1123): at most 63 lower-case letters,
// digits and inner hyphens.
func IsLabel(s string) bool {
	return len(s) <= 63 && isLabel(s) && strings.ToLower(s) == s
}

// Wildcard tells whether the first label is "*".
func (h Host) Wildcard() bool { return strings.HasPrefix(h.name, "*.") }

// Compare orders hosts as text.
func (h Host) Compare(o Host) int { return cmp.Compare(h.name, o.name) }

func (h Host) String() string { return h.name }

// MarshalText writes the name.
func (h Host) MarshalText() ([]byte, error) { return []byte(h.name), nil }
