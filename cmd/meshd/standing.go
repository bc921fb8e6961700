package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/meshd/meshd/internal/mesh"
)

// showStanding writes how a registry stands with its source, as rows for a tabwriter: where it asks, by which questions it
// keeps up, and what it holds.
func showStanding(w io.Writer, registry string, s *mesh.Standing, now time.Time) {
	fmt.Fprintf(w, "\nSOURCE OF %s\t%s\n", registry, oneLine(s.Source))
	fmt.Fprintf(w, "mode\t%s\n", oneLine(s.Mode))
	fmt.Fprintf(w, "connections\t%d open, %s so far\n", s.Connections, counted(int(s.Requests), "request", "requests"))
	if s.Unconfirmed > 0 {
		fmt.Fprintf(w, "unconfirmed\t%s: nothing is taken away by it before the source confirms it\n", counted(s.Unconfirmed, "answer", "answers"))
	}
	if len(s.Watches) == 0 {
		fmt.Fprint(w, "answers\tnone yet, and no failure\n")
	} else {
		fmt.Fprint(w, "\nREGISTRY\tQUERY\tCOUNT\tINDEX\tLAST ANSWER\tTRANSPORT\tERROR\n")
	}
	told := ""
	for _, q := range s.Watches {
		index, answered, failure := "-", "never", "-"
		if q.Index != 0 {
			index = strconv.FormatUint(q.Index, 10)
		}
		if !q.Answered.IsZero() {
			answered = age(q.Answered, now) + " ago"
		}
		if q.Error != "" {
			what := oneLine(q.Error)
			if what == told { // mostly one cause makes all fail, and says so at length
				what = "as above"
			} else {
				told = what
			}
			failure = "for " + age(q.Failed, now) + ": " + what
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", registry, q.Query, q.Count, index, answered, cmp.Or(oneLine(q.Transport), "-"), failure)
	}
	if len(s.Held) > 0 {
		showHeld(w, registry, s, now)
	}
}

// showHeld writes what a registry holds, and what to do about it.
func showHeld(w io.Writer, registry string, s *mesh.Standing, now time.Time) {
	const most = 10
	fmt.Fprintf(w, "\nHELD BY %s\tINSTANCES\tFOR\tWHY\n", registry)
	for _, h := range s.Held[:min(most, len(s.Held))] {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", oneLine(h.Service), h.Instances, age(h.Since, now), oneLine(h.Reason))
	}
	if more := len(s.Held) - most; more > 0 {
		fmt.Fprintf(w, "and %s, which -o json shows\n", counted(more, "more service", "more services"))
	}
	fmt.Fprintf(w, "Until the source confirms that they are gone, %s served on.\n", counted(s.HeldInstances(), "instance is", "instances are"))
	if !s.Up() {
		fmt.Fprint(w, "As long as it fails it cannot: cure that first.\n")
	}
	fmt.Fprintf(w, "If you know that they are gone: meshd release %s\n", registry)
}

// oneLine is text of others as one line that does nothing to a terminal or a table.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.Join(strings.Fields(text), " "))
}
