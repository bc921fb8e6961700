package consulreg

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func of(name string) job { return job{of: ofInstances, name: name} }

func surely(name string) job { return job{of: ofInstances, name: name, consistent: true} }

// begin begins the next read.
func begin(q *queue, now time.Time) string {
	j, ok := q.next(now)
	if !ok {
		return ""
	}
	q.begun(j)
	return described(j)
}

// drain begins and ends all reads, and says which.
func drain(q *queue, now time.Time) string {
	var done []string
	for {
		j, ok := q.next(now)
		if !ok {
			return strings.Join(done, " ")
		}
		q.begun(j)
		q.ended(j, false, now)
		done = append(done, described(j))
	}
}

func described(j job) string {
	text := j.name
	if j.consistent {
		text += "!"
	}
	if j.known != 0 {
		text += fmt.Sprint("@", j.known)
	}
	return text
}

func TestQueue(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		do   func(q *queue) string
		want string
	}{
		{"nothing is to be done at first", func(q *queue) string { return drain(q, now) }, ""},
		{"the urgent come before the routine ones, each in their order", func(q *queue) string {
			q.add(of("a"), false)
			q.add(of("b"), true)
			q.add(of("c"), false)
			q.add(of("d"), true)
			return drain(q, now)
		}, "b d a c"},
		{"what is asked for twice is done once", func(q *queue) string {
			q.add(of("a"), false)
			q.add(of("a"), false)
			q.add(of("a"), true)
			q.add(of("a"), true)
			return drain(q, now)
		}, "a"},
		{"what becomes urgent goes before", func(q *queue) string {
			q.add(of("a"), false)
			q.add(of("b"), false)
			q.add(of("b"), true)
			return drain(q, now)
		}, "b a"},
		{"what is urgent does not cease to be", func(q *queue) string {
			q.add(of("a"), true)
			q.add(of("b"), true)
			q.add(of("a"), false)
			return drain(q, now)
		}, "a b"},
		{"targets of one name are different ones", func(q *queue) string {
			q.add(job{of: ofServices, name: ""}, false)
			q.add(job{of: ofInstances, name: ""}, false)
			return fmt.Sprint(len(q.jobs))
		}, "2"},
		{"a consistent read stands for one that is not, and takes any answer", func(q *queue) string {
			q.add(job{of: ofInstances, name: "a", known: 7}, false)
			q.add(surely("a"), false)
			q.add(job{of: ofInstances, name: "a", known: 8}, false)
			return drain(q, now)
		}, "a!"},
		{"what has not begun stays", func(q *queue) string {
			q.add(of("a"), false)
			first, _ := q.next(now)
			return first.name + " " + drain(q, now)
		}, "a a"},
		{"what is under way is not begun again", func(q *queue) string {
			q.add(of("a"), false)
			return begin(q, now) + drain(q, now)
		}, "a"},
		{"what is asked for while it is under way is done again, and takes any answer", func(q *queue) string {
			q.add(of("a"), false)
			begin(q, now)
			q.add(job{of: ofInstances, name: "a", known: 7}, false)
			held := drain(q, now)
			q.ended(of("a"), false, now)
			return held + drain(q, now)
		}, "a"},
		{"a consistent one that is asked for meanwhile is done as that", func(q *queue) string {
			q.add(of("a"), false)
			begin(q, now)
			q.add(surely("a"), false)
			q.add(of("a"), false)
			q.ended(of("a"), false, now)
			return drain(q, now)
		}, "a!"},
		{"a plain one that is asked for while a consistent one is under way is done as that", func(q *queue) string {
			q.add(surely("a"), false)
			begin(q, now)
			q.add(of("a"), false)
			q.ended(surely("a"), false, now)
			return drain(q, now)
		}, "a"},
		{"what failed is done again after a pause", func(q *queue) string {
			q.add(job{of: ofInstances, name: "a", known: 7}, false)
			begin(q, now)
			q.ended(job{of: ofInstances, name: "a", known: 7}, true, now)
			early := drain(q, now)
			due := q.due()
			if due.Before(now.Add(shortPause/2)) || due.After(now.Add(shortPause)) {
				t.Errorf("it is due after %s", due.Sub(now))
			}
			return early + drain(q, due.Add(-1)) + drain(q, due)
		}, "a@7"},
		{"after what is due all else follows", func(q *queue) string {
			q.add(of("a"), false)
			begin(q, now)
			q.ended(of("a"), true, now)
			q.add(of("b"), true)
			q.add(of("c"), false)
			return begin(q, now) + " " + drain(q, now.Add(time.Second))
		}, "b a c"},
		{"what failed and is asked for meanwhile keeps its pause, even if that is urgent", func(q *queue) string {
			q.add(of("a"), false)
			begin(q, now)
			q.ended(of("a"), true, now)
			q.add(surely("a"), true)
			return drain(q, now) + drain(q, q.due())
		}, "a!"},
		{"what failed while it was asked for again is done once", func(q *queue) string {
			q.add(of("a"), false)
			begin(q, now)
			q.add(surely("a"), true)
			q.ended(of("a"), true, now)
			return drain(q, now) + drain(q, q.due())
		}, "a!"},
		{"a consistent read that failed is done as that, whatever was asked for meanwhile", func(q *queue) string {
			q.add(surely("a"), false)
			begin(q, now)
			q.add(of("a"), true)
			q.ended(surely("a"), true, now)
			return drain(q, now) + drain(q, q.due())
		}, "a!"},
		{"what was asked for while it failed takes any answer", func(q *queue) string {
			known := job{of: ofInstances, name: "a", known: 7}
			q.add(known, false)
			begin(q, now)
			q.add(known, false)
			q.ended(known, true, now)
			return drain(q, q.due())
		}, "a"},
		{"what is taken back is not done", func(q *queue) string {
			q.add(of("a"), false)
			q.add(of("b"), true)
			q.drop(ofInstances, "a")
			q.drop(ofInstances, "b")
			q.drop(ofInstances, "c")
			return drain(q, now)
		}, ""},
		{"what is taken back and asked for again is", func(q *queue) string {
			q.add(of("a"), false)
			q.drop(ofInstances, "a")
			q.add(of("a"), true)
			return drain(q, now)
		}, "a"},
		{"what failed and is taken back is not done", func(q *queue) string {
			q.add(of("a"), false)
			begin(q, now)
			q.ended(of("a"), true, now)
			q.drop(ofInstances, "a")
			if !q.due().IsZero() {
				t.Error("it is due")
			}
			return drain(q, now.Add(time.Hour))
		}, ""},
		{"what failed, is taken back and asked for again is done at once", func(q *queue) string {
			q.add(of("a"), false)
			begin(q, now)
			q.ended(of("a"), true, now)
			q.drop(ofInstances, "a")
			q.add(of("a"), false)
			return drain(q, now)
		}, "a"},
		{"what is taken back while it is under way is not done again", func(q *queue) string {
			q.add(of("a"), false)
			begin(q, now)
			q.add(of("a"), false)
			q.drop(ofInstances, "a")
			q.ended(of("a"), false, now)
			return drain(q, now)
		}, ""},
		{"it waits until it is over", func(q *queue) string {
			q.add(of("a"), false)
			asked := q.waits(ofInstances, "a")
			begin(q, now)
			underWay := q.waits(ofInstances, "a")
			q.ended(of("a"), false, now)
			return fmt.Sprint(asked, underWay, q.waits(ofInstances, "a"))
		}, "true true false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.do(newQueue()); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestThePausesOfAReadGrow fails a read again and again.
func TestThePausesOfAReadGrow(t *testing.T) {
	now, q := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC), newQueue()
	q.add(of("a"), false)
	for n := range 12 {
		j, ok := q.next(now)
		if !ok || j.failures != n {
			t.Fatalf("the try %d is %+v, %v", n, j, ok)
		}
		q.begun(j)
		q.ended(j, true, now)
		most := min(longPause, shortPause<<n)
		if wait := q.due().Sub(now); wait < most/2 || wait > most {
			t.Errorf("the pause after failure %d is %s, want %s to %s", n+1, wait, most/2, most)
		}
		now = q.due()
	}
	j, _ := q.next(now)
	q.begun(j)
	q.ended(j, false, now)
	q.add(of("a"), false)
	if j, _ = q.next(now); j.failures != 0 {
		t.Errorf("a new one has failed %d times", j.failures)
	}
}

// TestNothingThatIsAskedForIsForgotten compares the queue with a model that says of each name what is owed: a read that begins after
// it was last asked for and does not fail.
func TestNothingThatIsAskedForIsForgotten(t *testing.T) {
	type owed struct{ consistent bool }
	rapid.Check(t, func(t *rapid.T) {
		now, q := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC), newQueue()
		debts := map[string]owed{}   // what is asked for and has not begun since
		running := map[string]job{}  // what is under way
		dropped := map[string]bool{} // what was taken back while it was under way: it may be done again, but need not
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		take := func() bool {
			j, ok := q.next(now)
			if !ok {
				return false
			}
			if _, twice := running[j.name]; twice {
				t.Fatalf("%s is under way twice", j.name)
			}
			debt, asked := debts[j.name]
			if !asked && !dropped[j.name] {
				t.Fatalf("%s was not asked for", j.name)
			}
			if debt.consistent && !j.consistent {
				t.Fatalf("%s is not read consistently", j.name)
			}
			q.begun(j)
			running[j.name] = j
			delete(debts, j.name)
			delete(dropped, j.name)
			return true
		}
		end := func(name string, failed bool) {
			j := running[name]
			delete(running, name)
			q.ended(j, failed, now)
			if failed && !dropped[name] {
				debts[name] = owed{consistent: debts[name].consistent || j.consistent}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				j := job{of: ofInstances, name: name.Draw(t, "name"), consistent: rapid.Bool().Draw(t, "consistent")}
				q.add(j, rapid.Bool().Draw(t, "urgent"))
				debts[j.name] = owed{consistent: debts[j.name].consistent || j.consistent}
			},
			"drop": func(t *rapid.T) {
				n := name.Draw(t, "name")
				q.drop(ofInstances, n)
				delete(debts, n)
				if _, is := running[n]; is {
					dropped[n] = true
				}
			},
			"begin": func(*rapid.T) { take() },
			"end": func(t *rapid.T) {
				if all := slices.Sorted(maps.Keys(running)); len(all) > 0 {
					end(rapid.SampledFrom(all).Draw(t, "name"), rapid.Bool().Draw(t, "failed"))
				}
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 6000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				for n := range debts {
					if !q.waits(ofInstances, n) {
						t.Fatalf("%s is forgotten", n)
					}
				}
			},
		})
		for range 100 {
			for _, n := range slices.Sorted(maps.Keys(running)) {
				end(n, false)
			}
			if !take() {
				if due := q.due(); due.After(now) {
					now = due
				} else if due.IsZero() && len(running) == 0 {
					break
				}
			}
		}
		if len(debts) > 0 || len(q.jobs) > 0 {
			t.Fatalf("%v is never done; the queue has %d jobs", debts, len(q.jobs))
		}
	})
}
