package consulreg

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// seen are instances with these words as ids, and their status after a colon.
func seen(words string) (all []*instance) {
	for word := range strings.FieldsSeq(words) {
		id, said, _ := strings.Cut(word, ":")
		all = append(all, &instance{Node: "vm", ID: id, Status: statusOf("", said)})
	}
	slices.SortFunc(all, (*instance).compare)
	return all
}

// wordsOf is the reverse of seen.
func wordsOf(all []*instance) string {
	var words []string
	for _, i := range all {
		word := i.ID
		switch i.Status {
		case critical:
			word += ":critical"
		case warning:
			word += ":warning"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

var (
	noon      = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	before    = noon.Add(-time.Minute)
	guard     = Options{}.withDefaults().Guard
	unguarded = Options{Guard: Guard{Off: true}}.withDefaults().Guard
)

func TestJudge(t *testing.T) {
	const (
		back     = "its index went back"
		trouble  = "soon after Consul had failed"
		contact  = "not heard of its leader"
		acl      = "which it did not before"
		lastOne  = "it takes the last instance"
		tooMany3 = "it takes 3 of 4 instances"
	)
	known := func(words string) *page { return &page{instances: seen(words), index: 10} }
	veiled := func(words string) *page { return &page{instances: seen(words), index: 10, filtered: true} }
	doubting := func(p *page, words string) *page {
		p.doubt = &doubt{instances: seen(words), index: 5, reason: "of old", since: before}
		return p
	}
	plain := func(words string, index uint64) sighting {
		return sighting{instances: seen(words), index: index, at: noon}
	}
	filtered := func(s sighting) sighting { s.filtered = true; return s }
	troubled := func(s sighting) sighting { s.troubled = true; return s }
	consistent := func(s sighting) sighting { s.consistent = true; return s }
	heard := func(s sighting, ago time.Duration) sighting { s.contact = ago; return s }

	for _, tt := range []struct {
		name  string
		guard Guard
		page  *page
		s     sighting

		want     string // the instances that are believed
		index    uint64
		filtered bool
		doubt    string // why the answer is in doubt; empty: it is not
		lost     int
		confirm  bool
	}{
		{name: "the first answer is believed", page: &page{}, s: plain("a b", 11), want: "a b", index: 11},
		{name: "a first answer that is filtered is believed, since there is nothing to measure it by", page: &page{}, s: filtered(plain("a", 11)), want: "a", index: 11, filtered: true},
		{name: "a first answer in trouble waits", page: &page{}, s: troubled(plain("a", 11)), doubt: trouble, confirm: true},
		{name: "a first answer without instances is believed even in trouble", page: &page{}, s: troubled(plain("", 11)), index: 11},
		{name: "what comes is believed", page: known("a"), s: plain("a b", 11), want: "a b", index: 11},
		{name: "what changes is believed", page: known("a b"), s: plain("a:critical b", 11), want: "a:critical b", index: 11},
		{name: "all may turn critical at once", page: known("a b c d"), s: plain("a:critical b:critical c:critical d:critical", 11), want: "a:critical b:critical c:critical d:critical", index: 11},
		{name: "one of three may go", page: known("a b c"), s: plain("a b", 11), want: "a b", index: 11},
		{name: "two of three may go", page: known("a b c"), s: plain("a", 11), want: "a", index: 11},
		{name: "half of four may go", page: known("a b c d"), s: plain("a b", 11), want: "a b", index: 11},
		{name: "more than half of four may not", page: known("a b c d"), s: plain("a", 11), want: "a b c d", index: 10, doubt: tooMany3, lost: 3, confirm: true},
		{name: "that others have come instead does not help", page: known("a b c d"), s: plain("a e f g", 11), want: "a b c d", index: 10, doubt: tooMany3, lost: 3, confirm: true},
		{name: "another share may go if that is set", guard: Guard{Endpoints: 0.75}, page: known("a b c d"), s: plain("a", 11), want: "a", index: 11},
		{name: "a smaller share may go if that is set", guard: Guard{Endpoints: 0.2}, page: known("a b c d"), s: plain("a b c", 11), want: "a b c d", index: 10, doubt: "it takes 1 of 4", lost: 1, confirm: true},
		{name: "the last instance may not go", page: known("a"), s: plain("", 11), want: "a", index: 10, doubt: lastOne, lost: 1, confirm: true},
		{name: "the last two may not go together", page: known("a b"), s: plain("", 11), want: "a b", index: 10, doubt: lastOne, lost: 2, confirm: true},
		{name: "the only one may be replaced by another", page: known("a"), s: plain("b", 11), want: "b", index: 11},
		{name: "with the guard off the last may go", guard: unguarded, page: known("a"), s: plain("", 11), index: 11},
		{name: "with the guard off many may go", guard: unguarded, page: known("a b c d"), s: plain("a", 11), want: "a", index: 11},
		{name: "with the guard off an index that went back is suspect all the same", guard: unguarded, page: known("a b"), s: plain("a", 9), want: "a b", index: 10, doubt: back, lost: 1, confirm: true},
		{name: "with the guard off trouble is suspect all the same", guard: unguarded, page: known("a b"), s: troubled(plain("a", 11)), want: "a b", index: 10, doubt: trouble, lost: 1, confirm: true},
		{name: "with the guard off newly filtered answers are suspect all the same", guard: unguarded, page: known("a b"), s: filtered(plain("a", 11)), want: "a b", index: 10, doubt: acl, lost: 1, confirm: true},
		{name: "with the guard off and a token that never saw all, a consistent read is believed", guard: unguarded, page: veiled("a b c d"), s: consistent(filtered(plain("", 11))), index: 11, filtered: true},

		{name: "an index that went back takes nothing", page: known("a b c"), s: plain("a b", 9), want: "a b c", index: 10, doubt: back, lost: 1, confirm: true},
		{name: "nor does it add at once", page: known("a"), s: plain("a b", 9), want: "a", index: 10, doubt: back, confirm: true},
		{name: "an index that went back with the same instances is no measure of what comes before a consistent read says so", page: known("a b"), s: plain("a b", 9), want: "a b", index: 10, confirm: true},
		{name: "that one is", page: known("a b"), s: consistent(plain("a b", 9)), want: "a b", index: 9},
		{name: "an equal index that lacks something says nothing", page: known("a b c"), s: plain("a b", 10), want: "a b c", index: 10},
		{name: "nor if all is missing", page: known("a b c"), s: plain("", 10), want: "a b c", index: 10},
		{name: "nor if it is filtered as ever", page: veiled("a b c"), s: filtered(plain("a", 10)), want: "a b c", index: 10, filtered: true},
		{name: "nor does it change what it has", page: known("a b"), s: plain("a:critical", 10), want: "a b", index: 10},
		{name: "an equal index that has more shows what was hidden", page: veiled("a"), s: plain("a b", 10), want: "a b", index: 10},
		{name: "an equal index that lacks something leaves a doubt as it was, to be confirmed", page: doubting(known("a b c"), "a"), s: plain("a b", 10), want: "a b c", index: 10, doubt: "of old", lost: 2, confirm: true},
		{name: "nor does a consistent read with an equal index take anything", page: known("a b c"), s: consistent(plain("a b", 10)), want: "a b c", index: 10, doubt: "is hidden", lost: 1, confirm: true},

		{name: "in trouble nothing goes", page: known("a b c"), s: troubled(plain("a b", 11)), want: "a b c", index: 10, doubt: trouble, lost: 1, confirm: true},
		{name: "in trouble the same is good", page: known("a b"), s: troubled(plain("a b", 11)), want: "a b", index: 11},
		{name: "a server that has lost touch takes nothing", page: known("a b c"), s: heard(plain("a b", 11), staleContact+1), want: "a b c", index: 10, doubt: contact, lost: 1, confirm: true},
		{name: "one that is a little behind is believed", page: known("a b c"), s: heard(plain("a b", 11), staleContact), want: "a b", index: 11},

		{name: "newly filtered takes nothing", page: known("a b c"), s: filtered(plain("a b", 11)), want: "a b c", index: 10, doubt: acl, lost: 1, confirm: true},
		{name: "newly filtered with the same instances says nothing, and is not the measure of what comes", page: known("a b c"), s: filtered(plain("a b c", 11)), want: "a b c", index: 10},
		{name: "newly filtered with the same instances ends a doubt", page: doubting(known("a b c"), "a"), s: consistent(filtered(plain("a b c", 11))), want: "a b c", index: 10},
		{name: "always filtered goes by the shares", page: veiled("a b c"), s: filtered(plain("a b", 11)), want: "a b", index: 11, filtered: true},
		{name: "always filtered may not take the last", page: veiled("a"), s: filtered(plain("", 11)), want: "a", index: 10, filtered: true, doubt: lastOne, lost: 1, confirm: true},
		{name: "no longer filtered is believed", page: veiled("a"), s: plain("a b", 11), want: "a b", index: 11},

		{name: "a consistent read is believed, however much it takes", page: known("a b c d"), s: consistent(plain("a", 11)), want: "a", index: 11},
		{name: "a consistent read may take the last", page: known("a"), s: consistent(plain("", 11)), index: 11},
		{name: "a consistent read is believed in trouble", page: known("a b"), s: consistent(troubled(plain("a", 11))), want: "a", index: 11},
		{name: "a consistent read confirms a doubt, which is gone then", page: doubting(known("a b c"), "a"), s: consistent(plain("a", 11)), want: "a", index: 11},
		{name: "a consistent read that has all again ends a doubt", page: doubting(known("a b c"), "a"), s: consistent(plain("a b c", 11)), want: "a b c", index: 11},
		{name: "a restore is believed by its consistent read, with its lower index", page: known("a b c"), s: consistent(plain("a", 3)), want: "a", index: 3},
		{name: "a consistent read that is newly filtered takes nothing", page: known("a b"), s: consistent(filtered(plain("a", 11))), want: "a b", index: 10, doubt: acl, lost: 1, confirm: true},
		{name: "a consistent read that is always filtered goes by the shares", page: veiled("a b c d"), s: consistent(filtered(plain("a b", 11))), want: "a b", index: 11, filtered: true},
		{name: "it may not take more than half of four", page: veiled("a b c d"), s: consistent(filtered(plain("a", 11))), want: "a b c d", index: 10, filtered: true, doubt: tooMany3, lost: 3, confirm: true},
		{name: "nor the last, which may just be hidden now", page: veiled("a b"), s: consistent(filtered(plain("", 11))), want: "a b", index: 10, filtered: true, doubt: lastOne, lost: 2, confirm: true},

		{name: "what is restored has no index, and no answer's is lower", page: &page{instances: seen("a b c")}, s: plain("a b", 1), want: "a b", index: 1},
		{name: "in trouble it is kept", page: &page{instances: seen("a b c")}, s: troubled(plain("a b", 1)), want: "a b c", doubt: trouble, lost: 1, confirm: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := tt.guard
			if g == (Guard{}) {
				g = guard
			}
			was := picture(tt.page, tt.s)
			got, confirm := g.judge(tt.page, tt.s)
			if d := cmp.Diff(was, picture(tt.page, tt.s)); d != "" {
				t.Errorf("it changed what it was given (-want +got):\n%s", d)
			}
			reason := ""
			if got.doubt != nil {
				reason = got.doubt.reason
			}
			if wordsOf(got.instances) != tt.want || got.index != tt.index || got.filtered != tt.filtered || got.lost() != tt.lost || confirm != tt.confirm ||
				!strings.Contains(reason, tt.doubt) || (reason == "") != (tt.doubt == "") {
				t.Errorf("believes %q, index %d, filtered %v, %d lost because %q, confirm %v;\nwant %q, index %d, filtered %v, %d lost because %q, confirm %v",
					wordsOf(got.instances), got.index, got.filtered, got.lost(), reason, confirm,
					tt.want, tt.index, tt.filtered, tt.lost, tt.doubt, tt.confirm)
			}
		})
	}
}

// picture is all that is in pages and sightings, by value.
func picture(p *page, s sighting) string {
	show := func(all []*instance) (out string) {
		for _, i := range all {
			out += fmt.Sprintf("%+v\n", *i)
		}
		return out
	}
	text := fmt.Sprint(show(p.instances), p.index, p.filtered, "\n", show(s.instances), s.index, s.filtered, s.contact, s.consistent, s.troubled, s.at)
	if p.doubt != nil {
		text += fmt.Sprint("\n", show(p.doubt.instances), p.doubt.index, p.doubt.filtered, p.doubt.reason, p.doubt.since, p.doubt.merged)
	}
	return text
}

// TestADoubtKeepsItsBeginning has answers that are not believed in a row.
func TestADoubtKeepsItsBeginning(t *testing.T) {
	p := &page{instances: seen("a b c d"), index: 10}
	p, _ = guard.judge(p, sighting{instances: seen("a b"), index: 5, at: before})
	p, _ = guard.judge(p, sighting{instances: seen("a b c"), index: 6, at: noon})
	if got := *p.doubt; got.since != before || got.index != 6 || wordsOf(got.instances) != "a b c" {
		t.Errorf("the doubt is since %s, of index %d with %q; want the newest answer, since the first", got.since, got.index, wordsOf(got.instances))
	}
	p, _ = guard.judge(p, sighting{instances: seen("a b c d"), index: 11, at: noon})
	if p.doubt != nil {
		t.Fatal("an answer that has everything leaves a doubt")
	}
	p, _ = guard.judge(p, sighting{instances: seen("a b c"), index: 5, at: noon})
	if p.doubt.since != noon {
		t.Errorf("a new doubt is since %s, want %s", p.doubt.since, noon)
	}
}

// TestWhatADoubtAddsAndChangesIsTakenAfterAWhile merges, and judges what comes after it.
func TestWhatADoubtAddsAndChangesIsTakenAfterAWhile(t *testing.T) {
	p := &page{instances: seen("a b c"), index: 10}
	p, _ = guard.judge(p, sighting{instances: seen("b:critical d"), index: 5, at: before})
	p = p.merge()
	if got := wordsOf(p.instances); got != "a b:critical c d" || p.lost() != 2 || p.index != 10 || !p.doubt.merged {
		t.Fatalf("merged it is %q, %d lost, index %d", got, p.lost(), p.index)
	}
	p, confirm := guard.judge(p, sighting{instances: seen("b d e"), index: 6, at: noon})
	if got := wordsOf(p.instances); got != "a b c d e" || p.lost() != 2 || !confirm || !p.doubt.merged {
		t.Fatalf("what comes later is %q, %d lost, confirm %v; want it to be taken at once", got, p.lost(), confirm)
	}
	if got := p.release(); wordsOf(got.instances) != "b d e" || got.index != 6 || got.doubt != nil {
		t.Errorf("released it is %q, index %d, doubt %v", wordsOf(got.instances), got.index, got.doubt)
	}
	p, _ = guard.judge(p, sighting{instances: seen("a b c d e f"), index: 7, at: noon})
	if got := wordsOf(p.instances); got != "a b c d e f" || p.doubt != nil || p.index != 7 {
		t.Errorf("an answer that lacks nothing leaves %q, doubt %v, index %d", got, p.doubt, p.index)
	}
	if p.release() != p {
		t.Error("there is something to release where nothing is in doubt")
	}
}

func TestADoubtThatLacksNothingEndsWhenItIsMerged(t *testing.T) {
	p, _ := guard.judge(&page{instances: seen("a"), index: 10}, sighting{instances: seen("a:critical b"), index: 5, filtered: true, at: before})
	if p = p.merge(); wordsOf(p.instances) != "a:critical b" || p.doubt != nil || p.index != 5 || !p.filtered {
		t.Errorf("it is %q, doubt %v, index %d, filtered %v", wordsOf(p.instances), p.doubt, p.index, p.filtered)
	}
}

// TestNothingIsTakenAwayWithoutReason judges any sequence of answers.
func TestNothingIsTakenAwayWithoutReason(t *testing.T) {
	ids := []string{"a", "b", "c", "d", "e", "f"}
	instances := rapid.Custom(func(t *rapid.T) []*instance {
		var words []string
		for _, id := range ids {
			switch rapid.IntRange(0, 4).Draw(t, id) {
			case 0:
			case 1:
				words = append(words, id+":critical")
			default:
				words = append(words, id)
			}
		}
		return seen(strings.Join(words, " "))
	})
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.SampledFrom([]Guard{guard, unguarded, {Services: 0.1, Endpoints: 0.25}}).Draw(t, "guard")
		p := &page{instances: instances.Draw(t, "restored")}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			was := p
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				p = p.release()
				if p.doubt != nil {
					t.Fatal("released, and still in doubt")
				}
				continue
			case 1:
				if p.doubt != nil {
					p = p.merge()
				}
				if n := len(missing(was.instances, p.instances)); n > 0 {
					t.Fatalf("merging takes %d away", n)
				}
				continue
			}
			s := sighting{
				instances: instances.Draw(t, "instances"), index: rapid.Uint64Range(1, 12).Draw(t, "index"), filtered: rapid.Bool().Draw(t, "filtered"),
				consistent: rapid.Bool().Draw(t, "consistent"), troubled: rapid.Bool().Draw(t, "troubled"),
				contact: rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "contact"), at: noon,
			}
			before := picture(was, s)
			var confirm bool
			p, confirm = g.judge(was, s)
			if after := picture(was, s); before != after {
				t.Fatalf("judging changed its arguments from\n%s\nto\n%s", before, after)
			}
			if !slices.IsSortedFunc(p.instances, (*instance).compare) {
				t.Fatalf("%q is not sorted", wordsOf(p.instances))
			}
			gone, lacks := missing(was.instances, p.instances), missing(was.instances, s.instances)
			within := g.Off || len(s.instances) > 0 && (len(was.instances) < 4 || float64(len(lacks)) <= g.Endpoints*float64(len(was.instances)))
			suspect := s.index < was.index || s.troubled || s.contact > staleContact
			hidden := s.index == was.index && !was.mixed && len(lacks) > 0
			allowed := !s.consistent && !suspect && s.index != was.index && within && (was.filtered || !s.filtered) || // (a)
				s.consistent && !s.filtered && !hidden || // (b)
				s.consistent && was.filtered && within && !hidden // (c)
			if len(gone) > 0 && !allowed {
				t.Fatalf("of %q, filtered %v, index %d, by %q %+v it has left %q", wordsOf(was.instances), was.filtered, was.index, wordsOf(s.instances), s, wordsOf(p.instances))
			}
			if len(lacks) > 0 && allowed && len(gone) != len(lacks) {
				t.Fatalf("of %q, by %q %+v it has kept %q", wordsOf(was.instances), wordsOf(s.instances), s, wordsOf(p.instances))
			}
			if s.consistent && !s.filtered && !hidden && (confirm || !sameInstances(p.instances, s.instances)) {
				t.Fatalf("a consistent read of %q is believed as %q", wordsOf(s.instances), wordsOf(p.instances))
			}
			if p.doubt != nil && !confirm {
				t.Fatal("a doubt that nobody will look into")
			}
		}
	})
}

func TestMissingAndUnionAreAsOfSets(t *testing.T) {
	drawn := rapid.Custom(func(t *rapid.T) []*instance {
		byKey := map[key]*instance{}
		for _, i := range rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *instance {
			return &instance{
				Node: rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node"), ID: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id"),
				Port: rapid.IntRange(1, 2).Draw(t, "port"),
			}
		}), 0, 9).Draw(t, "instances") {
			byKey[i.key()] = i
		}
		return slices.SortedFunc(maps.Values(byKey), (*instance).compare)
	})
	rapid.Check(t, func(t *rapid.T) {
		was, is := drawn.Draw(t, "was"), drawn.Draw(t, "is")
		has := map[key]*instance{}
		for _, i := range is {
			has[i.key()] = i
		}
		var gone []*instance
		for _, w := range was {
			if has[w.key()] == nil {
				gone = append(gone, w)
				has[w.key()] = w
			}
		}
		all := slices.SortedFunc(maps.Values(has), (*instance).compare)
		if d := cmp.Diff(gone, missing(was, is), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("missing (-want +got):\n%s", d)
		}
		if d := cmp.Diff(all, union(was, is), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("union (-want +got):\n%s", d)
		}
	})
}

// names are a list of services: NAME, or NAME=TAG.
func names(words string) map[string][]string {
	all := map[string][]string{}
	for word := range strings.FieldsSeq(words) {
		name, tag, tagged := strings.Cut(word, "=")
		all[name] = nil
		if tagged {
			all[name] = []string{tag}
		}
	}
	return all
}

func namesOf(all map[string][]string) string {
	words := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		words = append(words, strings.Join(append([]string{name}, all[name]...), "="))
	}
	return strings.Join(words, " ")
}

func TestLook(t *testing.T) {
	const (
		back    = "its index went back"
		trouble = "soon after Consul had failed"
		acl     = "which it did not before"
		empty   = "which no catalog is"
		own     = "it lacks Consul's own service"
	)
	known := func(words string) *directory { return &directory{names: names(words), index: 10} }
	veiled := func(words string) *directory { return &directory{names: names(words), index: 10, filtered: true} }
	doubting := func(d *directory, words string) *directory {
		d.doubt = &directoryDoubt{names: names(words), index: 5, reason: "of old", since: before}
		return d
	}
	plain := func(words string, index uint64) listing { return listing{names: names(words), index: index, at: noon} }
	filtered := func(l listing) listing { l.filtered = true; return l }
	troubled := func(l listing) listing { l.troubled = true; return l }
	consistent := func(l listing) listing { l.consistent = true; return l }
	ten := "a b c consul d e f g h i"

	for _, tt := range []struct {
		name      string
		guard     Guard
		directory *directory
		l         listing

		want     string
		index    uint64
		filtered bool
		doubt    string
		confirm  bool
	}{
		{name: "a first list in trouble is read again, by a consistent read", directory: &directory{}, l: troubled(plain("a consul", 11)), confirm: true},
		{name: "that one is believed", directory: &directory{}, l: consistent(troubled(plain("a consul", 11))), want: "a consul", index: 11},
		{name: "that one is believed if it is filtered, and even empty, which is told elsewhere", directory: &directory{}, l: consistent(troubled(filtered(plain("", 11)))), index: 11, filtered: true},
		{name: "a first list without trouble is believed", directory: &directory{}, l: plain("a consul", 11), want: "a consul", index: 11},
		{name: "what comes is believed", directory: known("a consul"), l: plain("a b consul", 11), want: "a b consul", index: 11},
		{name: "what comes is believed in trouble", directory: known("a consul"), l: troubled(plain("a b consul", 11)), want: "a b consul", index: 11},
		{name: "what comes is believed though the index went back", directory: known("a consul"), l: plain("a b consul", 9), want: "a b consul", index: 9},
		{name: "other tags are believed", directory: known("a=1 consul"), l: plain("a=2 consul", 11), want: "a=2 consul", index: 11},
		{name: "that one is gone is confirmed, and what comes and changes with it is taken", directory: known("a b=1 consul"), l: plain("b=2 c consul", 11), want: "a b=2 c consul", index: 10, doubt: "1 of 3 services are missing", confirm: true},
		{name: "confirmed it is gone", directory: known("a b consul"), l: consistent(plain("b consul", 11)), want: "b consul", index: 11},
		{name: "confirmed all but Consul's own may go", directory: known("a b consul"), l: consistent(plain("consul", 11)), want: "consul", index: 11},
		{name: "with the guard off one that is gone is gone", guard: unguarded, directory: known("a b consul"), l: plain("b consul", 11), want: "b consul", index: 11},
		{name: "with the guard off trouble is suspect all the same", guard: unguarded, directory: known("a b consul"), l: troubled(plain("b consul", 11)), want: "a b consul", index: 10, doubt: trouble, confirm: true},
		{name: "with the guard off an index that went back is suspect all the same", guard: unguarded, directory: known("a b consul"), l: plain("b consul", 9), want: "a b consul", index: 10, doubt: back, confirm: true},
		{name: "an index that went back takes nothing", directory: known("a b consul"), l: plain("b consul", 9), want: "a b consul", index: 10, doubt: back, confirm: true},
		{name: "a restore is believed by its consistent read, with its lower index", directory: known("a b consul"), l: consistent(plain("b consul", 3)), want: "b consul", index: 3},
		{name: "an equal index that lacks something says nothing", directory: known("a b consul"), l: plain("b consul", 10), want: "a b consul", index: 10},
		{name: "nor does it add anything", directory: known("a b consul"), l: plain("b c consul", 10), want: "a b consul", index: 10},
		{name: "it leaves a doubt to be confirmed", directory: doubting(known("a b consul"), "consul"), l: plain("b consul", 10), want: "a b consul", index: 10, doubt: "of old", confirm: true},
		{name: "an equal index that has more shows what was hidden", directory: veiled("a"), l: plain("a consul", 10), want: "a consul", index: 10},
		{name: "newly filtered takes nothing, not even by a consistent read", directory: known("a b consul"), l: consistent(filtered(plain("b consul", 11))), want: "a b consul", index: 10, doubt: acl, confirm: true},
		{name: "always filtered is believed by a consistent read within the share", directory: veiled(ten), l: consistent(filtered(plain("b c consul d e f g", 11))), want: "b c consul d e f g", index: 11, filtered: true},
		{name: "beyond it is not", directory: veiled(ten), l: consistent(filtered(plain("b c consul d e f", 11))), want: ten, index: 10, filtered: true, doubt: "it takes 4 of 10 services", confirm: true},
		{name: "with the guard off it is", guard: unguarded, directory: veiled(ten), l: consistent(filtered(plain("consul", 11))), want: "consul", index: 11, filtered: true},
		{name: "another share may go if that is set", guard: Guard{Services: 0.05}, directory: veiled(ten), l: consistent(filtered(plain("b c consul d e f g h i", 11))), want: ten, index: 10, filtered: true, doubt: "it takes 1 of 10 services", confirm: true},
		{name: "a list that shrank to nothing is not believed", directory: known("a consul"), l: plain("", 11), want: "a consul", index: 10, doubt: empty, confirm: true},
		{name: "not even by a consistent read", directory: known("a consul"), l: consistent(plain("", 11)), want: "a consul", index: 10, doubt: empty, confirm: true},
		{name: "not even if Consul's own service was never seen", directory: veiled("a"), l: consistent(plain("", 11)), want: "a", index: 10, filtered: true, doubt: empty, confirm: true},
		{name: "not even with the guard off", guard: unguarded, directory: known("a consul"), l: consistent(plain("", 11)), want: "a consul", index: 10, doubt: empty, confirm: true},
		{name: "a list without Consul's own service is not believed, though it says nothing of being filtered", directory: known("a b consul"), l: consistent(plain("b", 11)), want: "a b consul", index: 10, doubt: own, confirm: true},
		{name: "one that never had it is", directory: veiled("a b"), l: consistent(plain("b", 11)), want: "b", index: 11},
		{name: "a list that has all again ends a doubt", directory: doubting(known("a b consul"), "consul"), l: plain("a b consul", 11), want: "a b consul", index: 11},
		{name: "a restored list has no index, and no answer's is lower", directory: &directory{names: names("a consul")}, l: plain("consul", 1), want: "a consul", doubt: "1 of 2 services are missing", confirm: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := tt.guard
			if g == (Guard{}) {
				g = guard
			} else if !g.Off {
				g.Endpoints = 0.5
			}
			was := namesOf(tt.directory.names)
			got, confirm := g.look(tt.directory, tt.l)
			if is := namesOf(tt.directory.names); is != was {
				t.Errorf("it changed what it was given from %q to %q", was, is)
			}
			reason := ""
			if got.doubt != nil {
				reason = got.doubt.reason
				if want := namesOf(tt.l.names); tt.doubt != "of old" && namesOf(got.doubt.names) != want {
					t.Errorf("what is in doubt is %q, want %q", namesOf(got.doubt.names), want)
				}
			}
			if namesOf(got.names) != tt.want || got.index != tt.index || got.filtered != tt.filtered || confirm != tt.confirm ||
				!strings.Contains(reason, tt.doubt) || (reason == "") != (tt.doubt == "") {
				t.Errorf("believes %q, index %d, filtered %v, doubt %q, confirm %v;\nwant %q, index %d, filtered %v, doubt %q, confirm %v",
					namesOf(got.names), got.index, got.filtered, reason, confirm, tt.want, tt.index, tt.filtered, tt.doubt, tt.confirm)
			}
		})
	}
}

// TestManyServicesMayComeBack is about a Consul that has lost its data, as its index shows: agents register their services again
// within a minute or two.
func TestManyServicesMayComeBack(t *testing.T) {
	known := func(s string) *directory { return &directory{names: names(s), index: 10} }
	all := "a b c consul d e f g h i"
	list := func(s string, index uint64, at time.Time) listing {
		return listing{names: names(s), index: index, consistent: true, at: at}
	}
	for _, tt := range []struct {
		name  string
		guard Guard
		was   *directory
		lists []listing
		want  string
	}{
		{"many are waited for", guard, known(all), []listing{list("consul", 3, noon)}, all},
		{"those that come back do not make the others go", guard, known(all), []listing{list("consul", 3, noon), list("a b c consul d e f g h", 4, noon.Add(time.Minute))}, all},
		{"those that have not come back by then are gone", guard, known(all), []listing{list("consul", 3, noon), list("a consul", 4, noon.Add(reunion))}, "a consul"},
		{"when all are back nothing is in doubt", guard, known(all), []listing{list("consul", 3, noon), list(all, 4, noon.Add(time.Second)), list("consul", 5, noon.Add(2*time.Second))}, "consul"},
		{"after a restart of ours as well", guard, &directory{names: names(all)}, []listing{list("consul", 3, noon)}, all},
		{"few are not waited for", guard, known(all), []listing{list("a b c consul d e f", 3, noon)}, "a b c consul d e f"},
		{"nor many whose index went on", guard, known(all), []listing{list("consul", 11, noon)}, "consul"},
		{"nor those of a small catalog", guard, known("a b consul"), []listing{list("consul", 3, noon)}, "consul"},
		{"nor any with the guard off", Guard{Off: true}, known(all), []listing{list("consul", 3, noon)}, "consul"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := tt.was
			for _, l := range tt.lists {
				d, _ = tt.guard.look(d, l)
			}
			if got := namesOf(d.names); got != tt.want {
				t.Errorf("believes %q, want %q; doubt %+v", got, tt.want, d.doubt)
			}
		})
	}
}

func TestADoubtOfTheListKeepsItsBeginning(t *testing.T) {
	d := &directory{names: names("a b c consul"), index: 10}
	d, _ = guard.look(d, listing{names: names("a consul"), index: 5, at: before})
	d, _ = guard.look(d, listing{names: names("a b consul d"), index: 6, at: noon})
	if got := *d.doubt; got.since != before || got.index != 6 || namesOf(got.names) != "a b consul d" || namesOf(d.names) != "a b c consul d" {
		t.Errorf("the doubt is since %s, of index %d, with %q in %q", got.since, got.index, namesOf(got.names), namesOf(d.names))
	}
}

// TestNoServiceIsForgottenWithoutReason looks at any sequence of lists.
func TestNoServiceIsForgottenWithoutReason(t *testing.T) {
	all := rapid.Custom(func(t *rapid.T) map[string][]string {
		out := map[string][]string{}
		for _, name := range []string{"a", "b", "c", "d", "consul"} {
			if rapid.IntRange(0, 3).Draw(t, name) > 0 {
				out[name] = nil
			}
		}
		return out
	})
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.SampledFrom([]Guard{guard, unguarded}).Draw(t, "guard")
		d := &directory{names: all.Draw(t, "restored")}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			l := listing{
				names: all.Draw(t, "names"), index: rapid.Uint64Range(1, 12).Draw(t, "index"), filtered: rapid.Bool().Draw(t, "filtered"),
				consistent: rapid.Bool().Draw(t, "consistent"), troubled: rapid.Bool().Draw(t, "troubled"), at: noon,
			}
			was, before, given := d, namesOf(d.names), namesOf(l.names)
			var confirm bool
			d, confirm = g.look(was, l)
			if namesOf(was.names) != before || namesOf(l.names) != given {
				t.Fatal("looking changed its arguments")
			}
			gone, lacks, kept := 0, 0, 0
			for name := range was.names {
				if _, ok := d.names[name]; !ok {
					gone++
				}
				if _, ok := l.names[name]; !ok {
					lacks++
				}
			}
			for name := range l.names {
				if _, ok := d.names[name]; ok {
					kept++
				}
			}
			_, had := was.names["consul"]
			_, has := l.names["consul"]
			switch {
			case gone > 0 && gone != lacks:
				t.Fatalf("of %q by %q it has left %q", before, given, namesOf(d.names))
			case gone > 0 && (len(l.names) == 0 || had && !has || l.filtered && !was.filtered || !l.consistent && (!g.Off || l.troubled || l.index <= was.index)):
				t.Fatalf("of %q, filtered %v, index %d, by %q %+v it has left %q", before, was.filtered, was.index, given, l, namesOf(d.names))
			case lacks > 0 && gone == 0 && d != was && !confirm:
				t.Fatal("something is missing, and nobody will look into it")
			case d != was && kept < len(l.names):
				t.Fatalf("of %q it has left %q", given, namesOf(d.names))
			}
		}
	})
}
