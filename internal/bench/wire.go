package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// wire is the client's side of an HTTP/2 connection with one gRPC call on it, and does what that takes and no more: a thousand
// of them must cost less than the server that is measured. What it waits for, it waits for without a buffer.
type wire struct {
	conn *net.TCPConn
	raw  syscall.RawConn
	take func([]byte) error // is given the bytes of responses, in pieces

	header     [9]byte
	headerHave int
	left       int    // of the frame's payload
	control    []byte // payload of a frame other than DATA
	received   int    // since windows were last opened

	out                               [][]byte // waits to be sent, framed for gRPC
	connWindow, window, initialWindow int64
	maxFrame                          int
	unsent                            *atomic.Int64 // bytes of out, and of others'
}

// The frames of HTTP/2 (RFC 9113) that matter here.
const (
	frameData         = 0
	frameHeaders      = 1
	frameRSTStream    = 3
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameWindowUpdate = 8

	flagEndStream  = 1
	flagACK        = 1
	flagEndHeaders = 4
	flagPadded     = 8

	settingInitialWindow = 4
	settingMaxFrame      = 5

	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// ahead is how much a server may send ahead: Envoy's own default for a stream.
	ahead = 16 << 20
)

var errEnded = errors.New("the server has ended the stream")

// dialWire opens a connection and a call.
func dialWire(address, path string, take func([]byte) error, unsent *atomic.Int64) (*wire, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	w := &wire{conn: conn.(*net.TCPConn), take: take, connWindow: 65535, window: 65535, initialWindow: 65535, maxFrame: 16384, unsent: unsent}
	if w.raw, err = w.conn.SyscallConn(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	b := []byte(preface)
	b = appendFrame(b, frameSettings, 0, 0, binary.BigEndian.AppendUint32([]byte{0, settingInitialWindow}, ahead))
	b = appendWindowUpdate(b, 0, ahead)
	b = appendFrame(b, frameHeaders, flagEndHeaders, 1, appendHeaders(address, path))
	if _, err := conn.Write(b); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return w, nil
}

// appendHeaders encodes (RFC 7541) with the static table and plain literals.
func appendHeaders(authority, path string) []byte {
	text := func(b []byte, s string) []byte {
		b = append(b, byte(min(len(s), 127)))
		if len(s) >= 127 {
			b = append(b, byte(len(s)-127)) // no more than 254
		}
		return append(b, s...)
	}
	b := []byte{0x83, 0x86}                              // :method POST, :scheme http
	b = text(append(b, 0x04), path)                      // :path
	b = text(append(b, 0x01), authority)                 // :authority
	b = text(append(b, 0x0f, 31-15), "application/grpc") // content-type
	return text(text(append(b, 0x00), "te"), "trailers") // not in the table
}

func appendFrame(b []byte, typ, flags byte, stream uint32, payload []byte) []byte {
	return append(appendFrameHeader(b, len(payload), typ, flags, stream), payload...)
}

func appendFrameHeader(b []byte, length int, typ, flags byte, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), typ, flags)
	return binary.BigEndian.AppendUint32(b, stream)
}

func appendWindowUpdate(b []byte, stream uint32, n int) []byte {
	return appendFrame(b, frameWindowUpdate, 0, stream, binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// buffers are for what is read: a connection has one only while there is something to read.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// read takes what comes until the connection or the call ends.
func (w *wire) read() error {
	for {
		buffer := buffers.Get().(*[64 << 10]byte)
		n, failed := 0, error(nil)
		err := w.raw.Read(func(fd uintptr) bool {
			for {
				n, failed = syscall.Read(int(fd), buffer[:])
				if !errors.Is(failed, syscall.EINTR) {
					return !errors.Is(failed, syscall.EAGAIN)
				}
			}
		})
		switch {
		case err == nil && failed != nil:
			err = failed
		case err == nil && n == 0:
			err = io.EOF
		case err == nil:
			err = w.feed(buffer[:n])
		}
		buffers.Put(buffer)
		if err != nil {
			return err
		}
	}
}

// feed takes the next bytes of the connection.
func (w *wire) feed(b []byte) error {
	for len(b) > 0 {
		if w.headerHave < len(w.header) {
			n := copy(w.header[w.headerHave:], b)
			w.headerHave, b = w.headerHave+n, b[n:]
			if w.headerHave < len(w.header) {
				return nil
			}
			w.left = int(w.header[0])<<16 | int(w.header[1])<<8 | int(w.header[2])
			w.control = w.control[:0]
		}
		piece := b[:min(len(b), w.left)]
		b, w.left = b[len(piece):], w.left-len(piece)
		if w.header[3] != frameData {
			w.control = append(w.control, piece...)
		} else if err := w.data(piece); err != nil {
			return err
		}
		if w.left > 0 {
			return nil
		}
		w.headerHave = 0
		if err := w.frame(w.header[3], w.header[4]); err != nil {
			return err
		}
	}
	return nil
}

func (w *wire) data(piece []byte) error {
	if w.header[4]&flagPadded != 0 {
		return errors.New("padded data")
	}
	if err := w.take(piece); err != nil {
		return err
	}
	if w.received += len(piece); w.received < ahead/4 {
		return nil
	}
	b := appendWindowUpdate(appendWindowUpdate(nil, 0, w.received), 1, w.received)
	w.received = 0
	_, err := w.conn.Write(b)
	return err
}

// frame acts on a frame that is whole.
func (w *wire) frame(typ, flags byte) error {
	p := w.control
	switch typ {
	case frameData, frameHeaders:
		if flags&flagEndStream != 0 {
			return errEnded
		}
	case frameRSTStream, frameGoAway:
		return fmt.Errorf("%w: frame %d, %x", errEnded, typ, p)
	case frameSettings:
		if flags&flagACK != 0 {
			return nil
		}
		for ; len(p) >= 6; p = p[6:] {
			value := int64(binary.BigEndian.Uint32(p[2:]))
			switch binary.BigEndian.Uint16(p) {
			case settingInitialWindow:
				w.window += value - w.initialWindow
				w.initialWindow = value
			case settingMaxFrame:
				w.maxFrame = int(value)
			}
		}
		if _, err := w.conn.Write(appendFrame(nil, frameSettings, flagACK, 0, nil)); err != nil {
			return err
		}
		return w.flush()
	case framePing:
		if flags&flagACK == 0 {
			_, err := w.conn.Write(appendFrame(nil, framePing, flagACK, 0, p))
			return err
		}
	case frameWindowUpdate:
		if len(p) < 4 {
			return io.ErrUnexpectedEOF
		}
		n := int64(binary.BigEndian.Uint32(p))
		if binary.BigEndian.Uint32(w.header[5:]) == 0 {
			w.connWindow += n
		} else {
			w.window += n
		}
		return w.flush()
	}
	return nil
}

// send sends a message, given in pieces that nobody changes any more, as soon as the server lets it.
func (w *wire) send(pieces ...[]byte) error {
	length := 0
	for _, p := range pieces {
		length += len(p)
	}
	w.out = append(w.out, binary.BigEndian.AppendUint32([]byte{0}, uint32(length)))
	w.out = append(w.out, pieces...)
	w.unsent.Add(int64(5 + length))
	return w.flush()
}

func (w *wire) flush() error {
	var frames net.Buffers
	sent := int64(0)
	for len(w.out) > 0 {
		room := int(min(w.connWindow, w.window, int64(w.maxFrame)))
		if room <= 0 {
			break
		}
		at, n := len(frames), 0
		frames = append(frames, nil) // the frame's header
		for len(w.out) > 0 && n < room {
			p := w.out[0][:min(len(w.out[0]), room-n)]
			n += len(p)
			frames = append(frames, p)
			if w.out[0] = w.out[0][len(p):]; len(w.out[0]) == 0 {
				w.out = w.out[1:]
			}
		}
		frames[at] = appendFrameHeader(nil, n, frameData, 0, 1)
		w.connWindow, w.window, sent = w.connWindow-int64(n), w.window-int64(n), sent+int64(n)
	}
	if len(w.out) == 0 {
		w.out = nil
	}
	if len(frames) == 0 {
		return nil
	}
	_, err := frames.WriteTo(w.conn)
	w.unsent.Add(-sent)
	return err
}
