package xds

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusservice "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/meshd/meshd/internal/envoy"
)

// Client status (CSDS): which resources each client has, as far as it has told. Nothing is written down for it: what a client
// has follows from the edition that it was sent, what it wants, and the exceptions.

// csdsService tells what the connected clients have.
type csdsService struct {
	*Server
	statusservice.UnimplementedClientStatusDiscoveryServiceServer
}

// StreamClientStatus answers each request with the state at that time.
func (s csdsService) StreamClientStatus(ss statusservice.ClientStatusDiscoveryService_StreamClientStatusServer) error {
	requests, ended := inbox(s.Server, ss)
	for {
		select {
		case m := <-requests:
			answer, err := s.clientStatus(m)
			if err != nil {
				return err
			}
			if err := ss.Send(answer); err != nil {
				return err
			}
		case err := <-ended:
			return err
		case <-s.draining:
			return goElsewhere()
		}
	}
}

// FetchClientStatus answers one request.
func (s csdsService) FetchClientStatus(_ context.Context, m *statusservice.ClientStatusRequest) (*statusservice.ClientStatusResponse, error) {
	return s.clientStatus(m)
}

// mostStatusBytes is how large an answer may become. Some hundreds of nodes fit without contents, and some dozens with them.
const mostStatusBytes = 32 << 20

// clientStatus is what the clients have that are asked for: one ClientConfig for each stream, in the order of [Server.Nodes].
func (s *Server) clientStatus(m *statusservice.ClientStatusRequest) (*statusservice.ClientStatusResponse, error) {
	wanted, err := matchNodes(m.GetNodeMatchers())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	all, _ := s.scopes.streams()
	type client struct {
		NodeStatus
		stream *stream
	}
	var clients []client
	for _, x := range all {
		if st := x.status(); wanted(st.ID) {
			clients = append(clients, client{st, x})
		}
	}
	slices.SortFunc(clients, func(a, b client) int { return a.compare(b.NodeStatus) })
	s.describing.Lock() // so that many who ask do not take all processors
	defer s.describing.Unlock()
	answer, room := &statusservice.ClientStatusResponse{}, mostStatusBytes
	for _, c := range clients {
		config := &statusservice.ClientConfig{Node: nodeOf(c.NodeStatus)}
		for _, h := range c.stream.holdings() {
			one := h.config(m.GetExcludeResourceContents())
			if room -= costOf(one); room < 0 {
				return nil, status.Errorf(codes.ResourceExhausted,
					"the answer on %d streams is larger than %d bytes; ask for fewer nodes with node_matchers, or set exclude_resource_contents", len(clients), mostStatusBytes)
			}
			config.GenericXdsConfigs = append(config.GenericXdsConfigs, one)
		}
		answer.Config = append(answer.Config, config)
	}
	return answer, nil
}

// nodeOf is a node as far as it is kept.
func nodeOf(s NodeStatus) *corev3.Node {
	n := &corev3.Node{Id: s.ID, Cluster: s.Cluster, UserAgentName: s.UserAgent}
	if s.Version != "" {
		n.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: s.Version}
	}
	if l := s.Scope.Locality; l.Region+l.Zone+l.SubZone != "" {
		n.Locality = &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
	}
	return n
}

// costOf is about how many bytes a config takes.
func costOf(c *statusservice.ClientConfig_GenericXdsConfig) int {
	const fixed = 100
	return fixed + len(c.GetName()) + len(c.GetXdsConfig().GetValue()) +
		len(c.GetErrorState().GetDetails()) + len(c.GetErrorState().GetFailedConfiguration().GetValue())
}

// standing is how a client stands with a resource.
type standing uint8

const (
	isOwed    standing = iota // it was not sent, or is to be sent again
	isAbsent                  // there is none
	isSent                    // it was sent, and the client has not answered
	isLeaving                 // that it is gone was sent, and the client has not taken it
	isHeld                    // the client has it
	isRefused                 // the client has rejected it
)

// standings say the same in the words of CSDS.
var standings = [...]struct {
	config statusservice.ConfigStatus
	client adminv3.ClientResourceStatus
}{
	isOwed:    {statusservice.ConfigStatus_NOT_SENT, adminv3.ClientResourceStatus_REQUESTED},
	isAbsent:  {statusservice.ConfigStatus_NOT_SENT, adminv3.ClientResourceStatus_DOES_NOT_EXIST},
	isSent:    {statusservice.ConfigStatus_STALE, adminv3.ClientResourceStatus_REQUESTED},
	isLeaving: {statusservice.ConfigStatus_STALE, adminv3.ClientResourceStatus_DOES_NOT_EXIST},
	isHeld:    {statusservice.ConfigStatus_SYNCED, adminv3.ClientResourceStatus_ACKED},
	isRefused: {statusservice.ConfigStatus_ERROR, adminv3.ClientResourceStatus_NACKED},
}

// holding is one resource and how a client stands with it.
type holding struct {
	protocol Protocol
	typ      envoy.Type
	name     envoy.Name
	standing standing
	resource *envoy.Resource // that it has, or was sent; nil if there is none, or it is known to the client alone
	mark     Mark            // of the response with which the client was sent or accepted it, as far as is known
	refused  *hold           // if the client has rejected it
}

// holdings are what a stream's client has, by type and name.
func (x *stream) holdings() []holding {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.session.holdings()
}

func (s *session) holdings() (out []holding) {
	for t := range envoy.Types {
		k := &s.tracks[t]
		if !k.asked {
			continue
		}
		for _, n := range k.concerned(t) {
			h := k.holding(t, n)
			h.protocol = s.protocol
			out = append(out, h)
		}
	}
	return out
}

// concerned are the names that the client wants or may have, in order.
func (k *track) concerned(t envoy.Type) []envoy.Name {
	var all []envoy.Name
	for n := range k.want.names.all() {
		all = append(all, n)
	}
	if k.want.wildcard {
		if k.sent != nil {
			for n := range k.sent.Resources[t].All() {
				all = append(all, n)
			}
		}
		for n := range k.doomed {
			all = append(all, n)
		}
		for n := range k.unheard {
			all = append(all, n)
		}
		if k.flight != nil {
			all = append(all, k.flight.removed...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (k *track) holding(t envoy.Type, n envoy.Name) holding {
	h := holding{typ: t, name: n, mark: k.marks.accepted}
	var current *envoy.Resource // by the edition that was sent
	if k.sent != nil {
		current, _ = k.sent.Resources[t].Get(n)
	}
	switch {
	case k.flight.has(n) && !k.flight.retry: // else it is refused until it takes it
		h.standing, h.mark, h.resource = isLeaving, k.marks.sent, k.flight.resource(n)
		if h.resource != nil {
			h.standing = isSent
		}
	case k.held[n] != nil:
		h.standing, h.refused = isRefused, k.held[n]
		if last := h.refused.kept(); last != nil && last.Version != h.refused.rejected.Version { // else it has just asked for it
			h.resource = last
		}
	case k.unheard.has(n):
		h.standing = isLeaving
	case k.sent == nil || k.isOwed(n):
		h.standing = isOwed
	case k.doomed[n] != nil:
		h.standing, h.resource = isHeld, k.doomed[n].resource
	case current != nil:
		h.standing, h.resource = isHeld, current
	default:
		h.standing = isAbsent
	}
	return h
}

// config says it in the words of CSDS, bare without the resources themselves.
func (h holding) config(bare bool) *statusservice.ClientConfig_GenericXdsConfig {
	content := func(r *envoy.Resource) *anypb.Any {
		if bare || r == nil {
			return nil
		}
		return anyOf(r)
	}
	c := &statusservice.ClientConfig_GenericXdsConfig{
		TypeUrl: typeURLs[h.typ], Name: string(h.name), XdsConfig: content(h.resource), VersionInfo: h.version(h.resource, h.mark),
		ConfigStatus: standings[h.standing].config, ClientStatus: standings[h.standing].client,
	}
	if h.resource != nil && !h.mark.Time.IsZero() {
		c.LastUpdated = timestamppb.New(h.mark.Time)
	}
	if r := h.refused; r != nil {
		c.ErrorState = &adminv3.UpdateFailureState{
			LastUpdateAttempt: timestamppb.New(r.since), Details: r.message,
			FailedConfiguration: content(r.rejected), VersionInfo: r.rejected.Version,
		}
	}
	return c
}

// version is the version under which a client knows a resource: its own, or in the state of the world that of the response.
func (h holding) version(r *envoy.Resource, m Mark) string {
	switch {
	case r == nil:
		return ""
	case h.protocol == SotW:
		return m.Version
	}
	return r.Version
}

// anyOf is a resource as a message, which shares its bytes and must not be changed.
func anyOf(r *envoy.Resource) *anypb.Any {
	b := r.Any() // type_url = 1, then value = 2
	_, _, n := protowire.ConsumeField(b)
	if n < 0 {
		return nil // it is made by envoy.NewResource, so it is none
	}
	_, _, tag := protowire.ConsumeTag(b[n:])
	value, _ := protowire.ConsumeBytes(b[n+tag:])
	return &anypb.Any{TypeUrl: typeURLs[r.Type], Value: value}
}

// compare orders streams by node id and then by when they were connected.
func (n NodeStatus) compare(o NodeStatus) int {
	return cmp.Or(cmp.Compare(n.ID, o.ID), n.Connected.Compare(o.Connected), cmp.Compare(n.Peer, o.Peer))
}

// longestPattern is how long a regular expression may be.
const longestPattern = 4 << 10

// matchNodes tells by their ids which nodes are meant: those that one of the matchers is for; without any, all.
func matchNodes(matchers []*matcherv3.NodeMatcher) (func(id string) bool, error) {
	var any []func(string) bool
	for i, m := range matchers {
		field := fmt.Sprintf("node_matchers[%d]", i)
		switch {
		case len(m.GetNodeMetadatas()) > 0:
			return nil, &envoy.FieldError{Field: field + ".node_metadatas", Message: "nodes are found by node_id alone; their metadata is not kept"}
		case m.GetNodeId() == nil:
			return nil, &envoy.FieldError{Field: field + ".node_id", Message: "is missing; leave out all node_matchers for all nodes"}
		}
		match, err := matchText(field+".node_id", m.GetNodeId())
		if err != nil {
			return nil, err
		}
		any = append(any, match)
	}
	return func(id string) bool {
		return len(any) == 0 || slices.ContainsFunc(any, func(match func(string) bool) bool { return match(id) })
	}, nil
}

// matchText is a matcher as a function.
func matchText(field string, m *matcherv3.StringMatcher) (func(string) bool, error) {
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = strings.ToLower
	}
	by := func(is func(text, pattern string) bool, pattern string) (func(string) bool, error) {
		pattern = fold(pattern)
		return func(text string) bool { return is(fold(text), pattern) }, nil
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return by(func(a, b string) bool { return a == b }, p.Exact)
	case *matcherv3.StringMatcher_Prefix:
		return by(strings.HasPrefix, p.Prefix)
	case *matcherv3.StringMatcher_Suffix:
		return by(strings.HasSuffix, p.Suffix)
	case *matcherv3.StringMatcher_Contains:
		return by(strings.Contains, p.Contains)
	case *matcherv3.StringMatcher_SafeRegex:
		field += ".safe_regex"
		if len(p.SafeRegex.GetRegex()) > longestPattern {
			return nil, &envoy.FieldError{Field: field, Message: fmt.Sprintf("is longer than %d bytes", longestPattern)}
		}
		re, err := regexp.Compile(`\A(?:` + p.SafeRegex.GetRegex() + `)\z`) // the whole text, as Envoy has it
		if err != nil {
			return nil, &envoy.FieldError{Field: field, Message: err.Error()}
		}
		return re.MatchString, nil
	}
	return nil, &envoy.FieldError{Field: field, Message: "has no exact, prefix, suffix, contains or safe_regex"}
}
