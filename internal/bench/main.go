// Command bench measures meshd's xDS server against what it is held to, and prints one row for each measure.
//
// The servers run in processes of their own: the meshd binary with a folder of entries where a change begins at a file, else the
// package xds alone. The clients, a thousand and more light ones, are in this process. What a figure must be is mostly said as
// a ratio to a broadcast: a server that sends the same bytes to as many of the same clients, by the same gRPC, and knows
// nothing of xDS. It runs in the same minutes, in turns with the other, so that a busy machine slows both.
//
// Processor time is that of the whole server process, memory is what the kernel says of it.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	var err error
	if len(os.Args) > 1 && os.Args[1] == serverCommand {
		err = serverMain(os.Args[2:], os.Stdin, os.Stdout)
	} else {
		err = benchMain(os.Args[1:], os.Stdout, os.Stderr)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the sizes of a run.
type options struct {
	Streams     int     `json:"streams"`
	Services    int     `json:"services"`
	Flat        []int   `json:"flat_services"`
	FlatStreams int     `json:"flat_streams"`
	Rounds      int     `json:"rounds"`
	Passes      int     `json:"passes"`
	Rate        float64 `json:"changes_per_second"`
	Seconds     float64 `json:"seconds"`
	Addresses   bool    `json:"addresses"`

	rows             []*row
	meshd, profile   string
	limit            time.Duration
	progress         io.Writer
	serverExecutable string
}

// endpoints is how many each service has.
const endpoints = 3

// result is what a run says.
type result struct {
	At      time.Time  `json:"at"`
	Go      string     `json:"go"`
	Cores   int        `json:"cores"`
	Options *options   `json:"options"`
	Rows    []*outcome `json:"rows"`
	Seconds float64    `json:"seconds"`
}

// outcome is one row's part of it.
type outcome struct {
	Row      string    `json:"row"`
	Title    string    `json:"title"`
	Others   float64   `json:"processors_of_others"` // how busy the machine was with other things
	Measures []measure `json:"measures"`
}

// measure is one figure.
type measure struct {
	Name   string   `json:"name"`
	Unit   string   `json:"unit"`
	Value  float64  `json:"value"`
	AtMost *float64 `json:"at_most,omitempty"` // absent: told, and not held to anything
	Holds  bool     `json:"holds"`
}

func benchMain(args []string, stdout, stderr io.Writer) error {
	o := &options{progress: stderr}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	all := make([]string, len(rows))
	for i := range rows {
		all[i] = rows[i].name
	}
	names := f.String("rows", strings.Join(all, ","), "rows to measure")
	flat := f.String("flat", "1000,10000", "numbers of services of the row flat")
	out := f.String("o", "", "`file` for the figures as JSON; - for standard output, with the table on standard error")
	f.IntVar(&o.Streams, "streams", 1000, "streams, each on a connection of its own")
	f.IntVar(&o.Services, "services", 2000, "services, each in a file of its own")
	f.IntVar(&o.FlatStreams, "flat-streams", 100, "streams of the row flat")
	f.IntVar(&o.Rounds, "rounds", 40, "changes of which the median is told")
	f.IntVar(&o.Passes, "passes", 9, "mass connects of which the median is told")
	f.Float64Var(&o.Rate, "rate", 50, "changes a second of the row steady")
	f.Float64Var(&o.Seconds, "seconds", 30, "length of the row steady")
	f.BoolVar(&o.Addresses, "addresses", false, "give each client an address of its own, as redirected machines have, and so a scope of its own")
	f.StringVar(&o.meshd, "meshd", filepath.Join("bin", "meshd"), "the meshd `program`")
	f.StringVar(&o.profile, "profile", "", "`folder` for profiles of the servers, one for each row, of the heap for memory, else of the processor; the figures suffer")
	f.DurationVar(&o.limit, "limit", 2*time.Minute, "longest wait for any one thing")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q is left over", f.Args())
	}
	for name := range strings.SplitSeq(*names, ",") {
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
		if i < 0 {
			return fmt.Errorf("-rows: %q is not one of %s", name, strings.Join(all, ", "))
		}
		o.rows = append(o.rows, &rows[i])
	}
	for text := range strings.SplitSeq(*flat, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("-flat: %w", err)
		}
		o.Flat = append(o.Flat, n)
	}
	atRate := slices.ContainsFunc(o.rows, func(r *row) bool { return r.name == "steady" })
	if changes := int(o.Rate * o.Seconds); atRate && changes > o.Services {
		return fmt.Errorf("-rate and -seconds make %d changes of %d services; no service may change twice", changes, o.Services)
	}
	if len(o.Flat) < 2 || min(o.Streams, o.Services, o.FlatStreams, o.Rounds, o.Passes, slices.Min(o.Flat)) < 1 || slices.Max(append(o.Flat, o.Services)) > mostServices {
		return fmt.Errorf("sizes are from 1 to %d, and -flat is two of them", mostServices)
	}

	r, err := run(o)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	switch *out {
	case "":
		printTable(stdout, r)
	case "-":
		printTable(stderr, r)
		_, err = stdout.Write(text)
	default:
		printTable(stdout, r)
		err = os.WriteFile(*out, text, 0o644)
	}
	return err
}

// run measures all rows.
func run(o *options) (_ *result, err error) {
	if o.serverExecutable, err = os.Executable(); err != nil {
		return nil, err
	}
	began := time.Now()
	r := &result{At: began.UTC().Truncate(time.Second), Go: runtime.Version(), Cores: runtime.NumCPU(), Options: o}
	l, err := newLab(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for _, row := range o.rows {
		fmt.Fprintf(o.progress, "%6.1fs %s: %s\n", time.Since(began).Seconds(), row.name, row.title)
		l.row = row.name
		var measures []measure
		others, err := l.others(func() (err error) {
			measures, err = row.measure(l)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row.name, err)
		}
		r.Rows = append(r.Rows, &outcome{Row: row.name, Title: row.title, Others: others, Measures: measures})
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// told is a figure that is held to nothing, held one that must not be greater.
func told(name, unit string, value float64) measure {
	return measure{Name: name, Unit: unit, Value: value, Holds: true}
}

func held(name, unit string, value, atMost float64) measure {
	return measure{Name: name, Unit: unit, Value: value, AtMost: &atMost, Holds: value <= atMost}
}

func printTable(w io.Writer, r *result) {
	fmt.Fprintf(w, "%d streams, %d services of %d endpoints; %s, %d processors, %s\n\n",
		r.Options.Streams, r.Options.Services, endpoints, r.Go, r.Cores, r.At.Format(time.DateTime))
	table := [][]string{{"row", "measure", "value", "must be", ""}, {"---", "---", "---", "---", "---"}}
	var others []string
	for _, o := range r.Rows {
		others = append(others, fmt.Sprintf("%s %.2f", o.Row, o.Others))
		for i, m := range o.Measures {
			name, mustBe, verdict := "", "", ""
			if i == 0 {
				name = o.Title
			}
			if m.AtMost != nil {
				mustBe, verdict = "at most "+figure(*m.AtMost, m.Unit), "holds"
				if !m.Holds {
					verdict = "**misses**"
				}
			}
			table = append(table, []string{name, m.Name, figure(m.Value, m.Unit), mustBe, verdict})
		}
	}
	var widths [5]int
	for _, line := range table {
		for i, cell := range line {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, line := range table {
		for i, cell := range line {
			fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		fmt.Fprintln(w, "|")
	}
	fmt.Fprintf(w, "\nProcessors busy with other things meanwhile: %s.\n", strings.Join(others, ", "))
}

// figure writes three digits, or more if there are more before the point.
func figure(v float64, unit string) string {
	digits := 2
	switch {
	case v == float64(int64(v)) || v >= 100:
		digits = 0
	case v >= 10:
		digits = 1
	case v < 0.1:
		digits = 3
	}
	return strings.TrimSpace(strconv.FormatFloat(v, 'f', digits, 64) + " " + unit)
}

// median of some values, which it sorts.
func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}
