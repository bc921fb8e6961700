package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/meshd/meshd/docs"
	"github.com/meshd/meshd/internal/admin"
	"github.com/meshd/meshd/internal/mesh"
)

// report is what a check has read and found.
type report struct {
	offline
	problems []mesh.Problem // in order
	excerpts bool           // whether lines of the files are wanted
}

func (r report) counts() admin.ProblemCounts { return admin.CountProblems(r.problems) }

// reportFormats write a report each in another way.
var reportFormats = map[string]func(io.Writer, report) error{
	"text":   writeText,
	"json":   writeJSON,
	"github": writeGitHub,
	"sarif":  writeSARIF,
}

func writeText(w io.Writer, r report) error {
	out := bufio.NewWriter(w)
	texts := sources{}
	if r.excerpts {
		texts = sourcesOf(r.files)
	}
	for _, p := range r.problems {
		printProblems(out, []mesh.Problem{p})
		fmt.Fprint(out, texts.excerpt(p.Origin))
	}
	return out.Flush()
}

// printProblems writes a line for each problem. Those that are no errors say so.
func printProblems(w io.Writer, problems []mesh.Problem) {
	for _, p := range problems {
		if p.Severity != mesh.Error {
			p.Field = p.Severity.String() + ": " + p.Field
			if p.Field == p.Severity.String()+": " {
				p.Field = p.Severity.String()
			}
		}
		fmt.Fprintln(w, p)
	}
}

// checked is what `meshd check -o json` prints.
type checked struct {
	Files    int                 `json:"files"`
	Entries  int                 `json:"entries"` // those that are right
	Counts   admin.ProblemCounts `json:"counts"`  // of the problems
	Problems []explained         `json:"problems"`
}

// explained is a problem and where its code is explained.
type explained struct {
	mesh.Problem
	Help string `json:"help"`
}

func writeJSON(w io.Writer, r report) error {
	c := checked{len(r.files), r.entries, r.counts(), make([]explained, len(r.problems))}
	for i, p := range r.problems {
		c.Problems[i] = explained{p, docs.ProblemURL(p.Code)}
	}
	return printJSON(w, c)
}

// writeGitHub writes workflow commands, which GitHub's runner makes annotations of. How they are escaped is said nowhere but
// in the code of its toolkit (packages/core/src/command.ts).
func writeGitHub(w io.Writer, r report) error {
	out := bufio.NewWriter(w)
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, p := range r.problems {
		properties := ""
		if at := p.Origin; at.Source != "" {
			properties = "file=" + property.Replace(at.Source) + ","
			if at.Line > 0 {
				properties += fmt.Sprintf("line=%d,col=%d,", at.Line, max(1, at.Column))
			}
		}
		fmt.Fprintf(out, "::%s %stitle=%s::%s\n", p.Severity, properties, property.Replace(p.Code), data.Replace(fieldAndMessage(p)))
	}
	return out.Flush()
}

// fieldAndMessage is what a problem says where its place and its code are said otherwise.
func fieldAndMessage(p mesh.Problem) string {
	if p.Field == "" {
		return p.Message
	}
	return p.Field + ": " + p.Message
}

// terminal tells whether somebody may be looking at what is written to w. The null device counts too; nobody minds.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
