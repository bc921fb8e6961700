// Package consulreg is a registry of services that are in Consul: one datacenter's catalog.
//
// It keeps a mirror of the catalog by blocking queries, and believes it with care: what Consul says while it is ill
// (a server that replays its log, an answer that an ACL filtered, a lost leader) takes nothing away. What instances become is
// decided by [Rules], purely; what is believed by a [Guard], purely; the loops hold the rest.
package consulreg
