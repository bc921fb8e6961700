package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/meshd/meshd/internal/admin"
)

// showLoads writes a line for each cluster that there are requests to, the busiest first, and one for each of its localities if
// there are several.
func showLoads(out io.Writer, answer []byte, _ time.Time) error {
	var all admin.Loads
	if err := json.Unmarshal(answer, &all); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	switch {
	case all.IntervalSeconds == 0:
		_, err := fmt.Fprintln(out, "no load reports are taken: load-report-interval is off")
		return err
	case all.Reporting == 0:
		if _, err := fmt.Fprintln(out, "no node reports its load; meshd bootstrap --load-reports makes one do so"); err != nil || len(all.Clusters) == 0 {
			return err
		}
	default:
		interval := time.Duration(all.IntervalSeconds * float64(time.Second))
		if _, err := fmt.Fprintf(out, "%s, every %s\n\n", counted(all.Reporting, "node reports", "nodes report"), interval); err != nil {
			return err
		}
	}
	slices.SortStableFunc(all.Clusters, func(a, b admin.ClusterLoad) int {
		return cmp.Or(cmp.Compare(b.RequestsPerSecond, a.RequestsPerSecond), cmp.Compare(b.Total.Requests, a.Total.Requests))
	})
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "SERVICE\tPORT\tLOCALITY\tREQUESTS/S\tERRORS/S\tDROPPED/S\tIN PROGRESS\tNODES\tREQUESTS\tERRORS\tDROPPED\n")
	row := func(l admin.Load, nodes string, first ...string) {
		for _, text := range first {
			fmt.Fprintf(w, "%s\t", text)
		}
		fmt.Fprintf(w, "%.1f\t%.1f\t%.1f\t%d\t%s\t%d\t%d\t%d\n", l.RequestsPerSecond, l.ErrorsPerSecond, l.DroppedPerSecond, l.InProgress, nodes,
			l.Total.Requests, l.Total.Errors, l.Total.Dropped)
	}
	for _, c := range all.Clusters {
		port := "-"
		if c.Port != 0 {
			port = strconv.Itoa(int(c.Port))
		}
		where := "all"
		if len(c.Localities) == 1 {
			where = cmp.Or(c.Localities[0].Locality.String(), "-")
		}
		row(c.Load, strconv.Itoa(c.Nodes.Count), cmp.Or(c.Service, c.Cluster), port, where)
		if len(c.Localities) < 2 {
			continue
		}
		for _, l := range c.Localities {
			row(l.Load, "", "", "", cmp.Or(l.Locality.String(), "-"))
		}
	}
	return w.Flush()
}
