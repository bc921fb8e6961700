package xds

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// frame is a response, encoded already: gRPC copies its buffers to the connection and into nothing else, so that
// streams can share them.
type frame struct{ buffers mem.BufferSlice }

// raw is a request, not yet decoded. Its bytes are its own until it is released.
type raw struct {
	bytes  []byte
	buffer mem.Buffer
}

// release gives the bytes back, to be used for other requests. Those of a request that is not released are just collected.
func (r *raw) release() { r.buffer.Free() }

// codec passes our own messages through as they are and leaves all others to the ordinary one.
type codec struct {
	encoding.CodecV2
	requests *buffers
}

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name), &buffers{}} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return f.buffers, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*raw); ok {
		r.buffer = data.MaterializeToBuffer(c.requests)
		r.bytes = r.buffer.ReadOnlyData()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// buffers is a pool of buffers, up to 1 MiB and in steps of two. gRPC's own has nothing between 32 KiB and 1 MiB, and clears what
// is about to be written over.
type buffers [21]sync.Pool

func (p *buffers) Get(size int) *[]byte {
	class := bits.Len(uint(max(size, 1) - 1))
	if class >= len(p) {
		b := make([]byte, size)
		return &b
	}
	b, ok := p[class].Get().(*[]byte)
	if !ok {
		made := make([]byte, 1<<class)
		b = &made
	}
	*b = (*b)[:size]
	return b
}

func (p *buffers) Put(b *[]byte) {
	if class := bits.Len(uint(max(cap(*b), 1) - 1)); class < len(p) && cap(*b) == 1<<class {
		p[class].Put(b)
	}
}
