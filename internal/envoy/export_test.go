package envoy

// Scopes are those of the property test.
var Scopes = scopes
