// Package docs holds the pages that meshd shows by itself. They are written for people, here, and read by nothing else:
// what a code of a problem means is said in problems.md and nowhere in the code.
package docs

import (
	_ "embed"
	"iter"
	"strings"
)

//go:embed problems.md
var problems string

// page is where the world finds problems.md.
const page = "https://github.com/meshd/meshd/blob/main/docs/problems.md"

// Problem is what problems.md says of a code.
type Problem struct {
	Code string
	Text string // Markdown: the severity, the meaning, an example, the remedy
}

// ProblemURL is where a code is explained.
func ProblemURL(code string) string { return page + "#" + code }

// Problems goes through problems.md, in its order.
func Problems() iter.Seq[Problem] {
	return func(yield func(Problem) bool) {
		_, sections, _ := strings.Cut(problems, "\n## ")
		for section := range strings.SplitSeq(sections, "\n## ") {
			code, text, _ := strings.Cut(section, "\n")
			if !yield(Problem{code, strings.TrimSpace(text)}) {
				return
			}
		}
	}
}

// Meaning is the first sentence after the severity.
func (p Problem) Meaning() string {
	paragraph, _, _ := strings.Cut(p.Text, "\n\n")
	_, meaning, _ := strings.Cut(strings.ReplaceAll(paragraph, "\n", " "), " ")
	if sentence, _, more := strings.Cut(meaning, ". "); more {
		return sentence + "."
	}
	return meaning
}
