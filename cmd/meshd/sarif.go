package main

import (
	"io"
	"net/url"
	"path/filepath"

	"github.com/meshd/meshd/docs"
	"github.com/meshd/meshd/internal/mesh"
)

// What is used of SARIF, the form in which OASIS has checkers report (version 2.1.0).
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool     `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID      string    `json:"id"`
		Short   sarifText `json:"shortDescription"`
		Help    sarifText `json:"help"`
		HelpURI string    `json:"helpUri"`
	}
	sarifText struct {
		Text     string `json:"text"`
		Markdown string `json:"markdown,omitempty"`
	}
	sarifResult struct {
		Rule      string          `json:"ruleId"`
		RuleIndex int             `json:"ruleIndex"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations,omitempty"`
	}
	sarifLocation struct {
		Physical sarifPlace     `json:"physicalLocation"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifPlace struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   *sarifRegion  `json:"region,omitempty"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		Line   int `json:"startLine"`
		Column int `json:"startColumn,omitempty"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
	}
)

// sarifLevels are the severities' names there.
var sarifLevels = map[mesh.Severity]string{mesh.Notice: "note", mesh.Warning: "warning", mesh.Error: "error"}

// writeSARIF writes a log of one run, with a rule for each code that occurs.
func writeSARIF(w io.Writer, r report) error {
	run := sarifRun{
		Tool: sarifTool{sarifDriver{
			Name: "meshd", Version: thisBuild().Version, InformationURI: "https://github.com/meshd/meshd", Rules: []sarifRule{},
		}},
		ColumnKind: "unicodeCodePoints",
		Results:    []sarifResult{},
	}
	occurs := map[string]bool{}
	for _, p := range r.problems {
		occurs[p.Code] = true
	}
	rules := map[string]int{} // where each stands
	for p := range docs.Problems() {
		if occurs[p.Code] {
			rules[p.Code] = len(rules)
			run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{
				ID: p.Code, Short: sarifText{Text: p.Meaning()}, Help: sarifText{p.Text, p.Text}, HelpURI: docs.ProblemURL(p.Code),
			})
		}
	}
	for _, p := range r.problems {
		result := sarifResult{
			Rule: p.Code, RuleIndex: rules[p.Code], Level: sarifLevels[p.Severity], Message: sarifText{Text: fieldAndMessage(p)},
		}
		if at := p.Origin; at.Source != "" {
			l := sarifLocation{Physical: sarifPlace{Artifact: sarifArtifact{fileURI(at.Source)}}}
			if at.Line > 0 {
				l.Physical.Region = &sarifRegion{at.Line, at.Column}
			}
			if p.Field != "" {
				l.Logical = []sarifLogical{{p.Field}}
			}
			result.Locations = []sarifLocation{l}
		}
		run.Results = append(run.Results, result)
	}
	return printJSON(w, sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{run}})
}

// fileURI is a path as a URI; one that is not absolute stays so.
func fileURI(path string) string {
	u := url.URL{Path: filepath.ToSlash(path)}
	if filepath.IsAbs(path) {
		u.Scheme = "file"
	}
	return u.String()
}
