package admin

import (
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/meshd/meshd/internal/xds"
)

// metrics is all of meshd's metrics. What they say is read when they are asked for.
func (s *Server) metrics() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &collector{s})
	return r
}

type collector struct{ *Server }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("meshd_"+name, help, labels, nil)
}

var (
	buildInfo   = desc("build_info", "Always 1; the labels say which meshd this is.", "version", "commit", "goversion")
	ready       = desc("ready", "Whether the first complete view is served.")
	generation  = desc("view_generation", "How many different views this process has served.")
	changed     = desc("view_changed_timestamp_seconds", "When the view that is served came to be.")
	services    = desc("services", "Services in the view.")
	endpointsOf = desc("endpoints", "Endpoints in the view.")
	problems    = desc("problems", "Problems with the input.", "severity")

	registrySynced    = desc("registry_synced", "Whether the registry has said what it knows.", "registry")
	registryPublished = desc("registry_published_timestamp_seconds", "When the registry last said what it knows.", "registry")
	registryServices  = desc("registry_services", "Services that the registry knows.", "registry")
	registryProblems  = desc("registry_problems", "Problems with what the registry was given.", "registry")

	sourceUp          = desc("registry_source_up", "Whether the registry's source answers; 0 while a watch fails.", "registry")
	sourceConnections = desc("registry_source_connections", "Open connections to the registry's source.", "registry")
	sourceRequests    = desc("registry_source_requests_total", "Requests to the registry's source.", "registry")
	heldInstances     = desc("registry_held_instances", "Instances that are served on although the registry's source has told that they are gone.", "registry")
	heldServices      = desc("registry_held_services", "Services with such instances.", "registry")
	unconfirmed       = desc("registry_unconfirmed_answers", "Answers that take something away and are not believed before the registry's source has confirmed them.", "registry")
	watches           = desc("registry_watches", "Standing questions to the registry's source.", "registry", "query")
	watchIndex        = desc("registry_watch_index", "The source's own number of the newest answer.", "registry", "query")
	watchAnswered     = desc("registry_watch_answered_timestamp_seconds", "When the newest answer came.", "registry", "query")

	streams     = desc("xds_streams", "Streams of nodes that are connected.", "protocol")
	refused     = desc("xds_refused_total", "Streams and connections that were refused, since there were as many as may be.")
	scopes      = desc("xds_scopes", "Scopes of the nodes that are connected; nodes of one scope share what they are sent.")
	pending     = desc("xds_pending_responses", "Responses that nodes have not answered yet.")
	rejecting   = desc("xds_rejecting_streams", "Streams that have rejected something which they have not accepted since.", "type")
	responses   = desc("xds_responses_total", "Responses sent.", "type")
	resources   = desc("xds_resources_total", "Resources sent.", "type")
	removed     = desc("xds_removed_resources_total", "Removals of resources sent.", "type")
	bytes       = desc("xds_response_bytes_total", "Bytes of the responses sent.", "type")
	rejections  = desc("xds_rejections_total", "Responses that nodes have rejected.", "type")
	heldBack    = desc("xds_held_resources", "Resources that are held back since a node rejected them, each once for every stream.", "type")
	translation = desc("xds_translation_seconds", "How long the last view took until it was translated for all scopes.")
	latency     = desc("xds_send_latency_seconds", "Time from a view being there to its changes being sent, one for each response; a stream's first ones do not count.")

	loadNodes      = desc("load_reporting_nodes", "Nodes that report their load.")
	loadRequests   = desc("load_requests_total", "Requests to a service's port, or connections where no HTTP is spoken, as the nodes count them that report their load.", "service", "port")
	loadErrors     = desc("load_errors_total", "Those of the requests that failed.", "service", "port")
	loadDropped    = desc("load_dropped_requests_total", "Requests that the nodes themselves have dropped.", "service", "port")
	loadInProgress = desc("load_requests_in_progress", "Requests that were under way when the nodes last reported.", "service", "port")
)

// Describe is part of [prometheus.Collector]. It says nothing, since what there is to collect changes.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect is part of [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}

	gauge(buildInfo, 1, c.options.Version, c.options.Commit, runtime.Version())
	gauge(ready, truth(c.unready() == ""))
	if now := c.served.Load(); now != nil {
		gauge(generation, float64(now.view.Generation))
		gauge(changed, timestamp(now.change.Time))
		gauge(services, float64(now.view.Services.Len()))
		gauge(endpointsOf, float64(endpoints(now.view)))
		n := CountProblems(c.allProblems(now.view))
		gauge(problems, float64(n.Error), "error")
		gauge(problems, float64(n.Warning), "warning")
		gauge(problems, float64(n.Notice), "notice")
	}
	for _, r := range c.options.Registries() {
		gauge(registrySynced, truth(r.Synced), r.Name)
		gauge(registryServices, float64(r.Services), r.Name)
		gauge(registryProblems, float64(r.Problems), r.Name)
		if r.Synced {
			gauge(registryPublished, timestamp(r.Published), r.Name)
		}
		standing := r.Standing
		if standing == nil {
			continue
		}
		gauge(sourceUp, truth(standing.Up()), r.Name)
		gauge(sourceConnections, float64(standing.Connections), r.Name)
		counter(sourceRequests, standing.Requests, r.Name)
		gauge(heldInstances, float64(standing.HeldInstances()), r.Name)
		gauge(heldServices, float64(len(standing.Held)), r.Name)
		gauge(unconfirmed, float64(standing.Unconfirmed), r.Name)
		for _, w := range standing.Watches {
			gauge(watches, float64(w.Count), r.Name, w.Query)
			if w.Index != 0 {
				gauge(watchIndex, float64(w.Index), r.Name, w.Query)
			}
			if !w.Answered.IsZero() {
				gauge(watchAnswered, timestamp(w.Answered), r.Name, w.Query)
			}
		}
	}

	stats := c.options.Stats()
	for p, n := range stats.Streams {
		gauge(streams, float64(n), xds.Protocol(p).String())
	}
	counter(refused, stats.Refused)
	gauge(scopes, float64(stats.Scopes))
	gauge(pending, float64(stats.Pending))
	rejects := map[string]int{}
	for _, n := range c.options.Nodes() {
		for _, d := range n.Deliveries {
			if d.Rejected != nil {
				rejects[d.Type.String()]++
			}
		}
	}
	typ := xds.Delivery{}.Type // the first one
	for _, n := range stats.Types {
		word := typ.String()
		gauge(rejecting, float64(rejects[word]), word)
		counter(responses, n.Pushes, word)
		counter(resources, n.Resources, word)
		counter(removed, n.Removed, word)
		counter(bytes, n.Bytes, word)
		counter(rejections, n.Rejections, word)
		gauge(heldBack, float64(n.Held), word)
		typ++
	}
	gauge(translation, stats.Translation.Seconds())
	ch <- histogram(latency, stats.Latency)

	loads := c.options.Loads("")
	gauge(loadNodes, float64(loads.Nodes))
	for _, l := range loads.Clusters {
		if l.Port == 0 {
			continue // of no service
		}
		labels := []string{l.Service.String(), strconv.Itoa(int(l.Port))}
		counter(loadRequests, l.Total.Requests, labels...)
		counter(loadErrors, l.Total.Errors, labels...)
		counter(loadDropped, l.Total.Drops, labels...)
		gauge(loadInProgress, float64(l.Rate.InProgress), labels...)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func timestamp(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// histogram counts in each bucket those of lower ones too, as Prometheus does.
func histogram(d *prometheus.Desc, l xds.Latency) prometheus.Metric {
	buckets := make(map[float64]uint64, len(l.Bounds))
	var n uint64
	for i, b := range l.Bounds {
		n += l.Buckets[i]
		buckets[b.Seconds()] = n
	}
	return prometheus.MustNewConstHistogram(d, l.Count, l.Sum.Seconds(), buckets)
}
