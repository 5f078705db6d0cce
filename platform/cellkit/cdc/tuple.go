package cdc

import "encoding/binary"

// tupleEnd says how many bytes a tuple has.
func tupleEnd(t []byte) (int, error) {
	if len(t) < 2 {
		return 0, errFormat
	}
	at := 2
	for range binary.BigEndian.Uint16(t) {
		_, next, err := field(t, at)
		if err != nil {
			return 0, err
		}
		at = next
	}
	return at, nil
}

// column gives the text of a tuple's value, nil when it has none.
func column(t []byte, place int) (v []byte, err error) {
	at := 2
	for range place + 1 {
		if v, at, err = field(t, at); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// field reads the value at a place; nil is NULL or not sent.
func field(t []byte, at int) (v []byte, next int, err error) {
	if at >= len(t) {
		return nil, 0, errFormat
	}
	if t[at] != 't' {
		return nil, at + 1, nil
	}
	if at+5 > len(t) {
		return nil, 0, errFormat
	}
	n := int(binary.BigEndian.Uint32(t[at+1:]))
	if next = at + 5 + n; n < 0 || next > len(t) {
		return nil, 0, errFormat
	}
	return t[at+5 : next : next], next, nil
}
