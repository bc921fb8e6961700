package pmap

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

type name string

func (n name) Compare(o name) int { return cmp.Compare(n, o) }

// TestAgainstBuiltInMap applies random changes to a Map and to a Go map, and compares them after each, the
// versions before included.
func TestAgainstBuiltInMap(t *testing.T) {
	type version struct {
		m    Map[name, int]
		want map[name]int
	}
	r := rand.New(rand.NewPCG(1, 2))
	versions := []version{{want: map[name]int{}}}
	for range 2000 {
		from := versions[r.IntN(len(versions))]
		k := name(fmt.Sprint(r.IntN(60)))
		want := maps.Clone(from.want)
		var m Map[name, int]
		if r.IntN(3) == 0 {
			m = from.m.Without(k)
			delete(want, k)
		} else {
			v := 1 + r.IntN(3)
			m = from.m.With(k, v)
			want[k] = v
		}
		versions = append(versions, version{m, want})
	}
	for i, v := range versions {
		if got := maps.Collect(v.m.All()); !maps.Equal(got, v.want) || v.m.Len() != len(v.want) {
			t.Fatalf("version %d: (-want +got):\n%s", i, gocmp.Diff(v.want, got))
		}
		var keys []name
		for k := range v.m.From("3") {
			keys = append(keys, k)
		}
		want := slices.DeleteFunc(slices.Sorted(maps.Keys(v.want)), func(k name) bool { return k < "3" })
		if !slices.Equal(keys, want) {
			t.Fatalf("version %d: From(3) = %v, want %v", i, keys, want)
		}
		o := versions[r.IntN(len(versions))]
		var got, wantDiff []Change[name, int]
		for c := range Diff(o.m, v.m) {
			got = append(got, c)
		}
		all := maps.Clone(o.want)
		maps.Copy(all, v.want)
		for _, k := range slices.Sorted(maps.Keys(all)) {
			if o.want[k] != v.want[k] {
				wantDiff = append(wantDiff, Change[name, int]{k, o.want[k], v.want[k]})
			}
		}
		if d := gocmp.Diff(wantDiff, got); d != "" {
			t.Fatalf("diff to version %d (-want +got):\n%s", i, d)
		}
		for k, w := range v.want {
			if g, ok := v.m.Get(k); !ok || g != w {
				t.Fatalf("version %d: Get(%s) = %d, %v; want %d", i, k, g, ok, w)
			}
		}
	}
}

func TestNothingChangesWhereNothingIsNew(t *testing.T) {
	m := Map[name, int]{}.With("a", 1).With("b", 2)
	if m.With("a", 1) != m {
		t.Error("With of what is there made another map")
	}
	if m.Without("c") != m {
		t.Error("Without of what is absent made another map")
	}
}

func TestIterationStops(t *testing.T) {
	m := Map[name, int]{}.With("a", 1).With("b", 2).With("c", 3)
	for _, seq := range []func(func(name, int) bool){m.All(), m.From("a")} {
		n := 0
		for range seq {
			n++
			break
		}
		if n != 1 {
			t.Errorf("%d rounds after a break, want 1", n)
		}
	}
	for range Diff(Map[name, int]{}, m) {
		break
	}
}

// BenchmarkOneChange is what one change costs, found again by Diff: nearly flat in the size.
func BenchmarkOneChange(b *testing.B) {
	for _, size := range []int{100, 1000, 10000, 100000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var m Map[name, int]
			for i := range size {
				m = m.With(name(fmt.Sprint(i)), i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				next := m.With(name(fmt.Sprint(i%size)), -i-1)
				for range Diff(m, next) {
				}
				m = next
			}
		})
	}
}
