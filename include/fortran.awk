# fortran.awk - the Fortran module te from the headers of include/te.
#
# Usage: awk [-v out=module|c|fortran] -f fortran.awk HEADER...
# out=module, the default, prints the module. out=c and out=fortran print programs that print
# every constant and the size, members and initial bytes of every structure; a test compares
# what they print.
#
# The rules by which declarations are translated are in te_fortran(7). What no rule covers becomes
# a line "! untranslated: NAME: reason", which fails t/meta/t0012-fortran.t.

BEGIN {
	# type of C -> type of Fortran, bytes; alignment is the same number
	scalar("char", "character(kind=c_char)", 1)
	scalar("double", "real(c_double)", 8)
	scalar("float", "real(c_float)", 4)
	scalar("int", "integer(c_int)", 4)
	scalar("int32_t", "integer(c_int32_t)", 4)
	scalar("int64_t", "integer(c_int64_t)", 8)
	scalar("int8_t", "integer(c_int8_t)", 1)
	scalar("size_t", "integer(c_size_t)", 8)
	scalar("uint16_t", "integer(c_int16_t)", 2)
	scalar("uint32_t", "integer(c_int32_t)", 4)
	scalar("uint64_t", "integer(c_int64_t)", 8)
	scalar("uint8_t", "integer(c_int8_t)", 1)

	# macros for C only
	n = split("ATTRS BEGIN_DECLS END_DECLS ERRNO_ENUM ERRNO_MAP EXPORT PRINTF", word, " ")
	for (i = 1; i <= n; i++)
		c_only["TE_" word[i]] = 1

	# arrays, where the declaration alone does not tell
	array["te_comm_alltoallv in_counts"] = array["te_comm_alltoallv in_offsets"] = 1
	array["te_comm_alltoallv out_counts"] = array["te_comm_alltoallv out_offsets"] = 1
	array["te_graph_create callables"] = array["te_graph_update callables"] = 1
	array["te_quant_peek ret_history"] = array["te_recording_deps ret_index"] = 1
}

function scalar(c, f, nbytes)
{
	ftype[c] = f
	bytes[c] = nbytes
}

function untranslated(name, why)
{
	bad[++nbad] = name ": " why
}

function trim(s)
{
	gsub(/[ \t\n]+/, " ", s)
	sub(/^ /, "", s)
	sub(/ $/, "", s)
	return s
}

# ---- reading: comments, macros, statements that end with a semicolon ----

FNR == 1 { doc = text = ""; depth = in_comment = 0 }

{
	line = $0
	code = ""
	while (line != "") {
		if (in_comment) {
			i = index(line, "*/")
			doc = doc (i ? substr(line, 1, i - 1) : line) "\n"
			line = i ? substr(line, i + 2) : ""
			in_comment = !i
		} else if ((i = index(line, "/*"))) {
			code = code substr(line, 1, i - 1)
			# a comment that begins a line is about what comes after it
			if (depth == 0 && trim(code) == "")
				doc = ""
			line = substr(line, i + 2)
			in_comment = 1
		} else {
			code = code line
			line = ""
		}
	}
	if (macro != "" || code ~ /^#/) {
		macro = macro code
		if (!sub(/\\$/, " ", macro)) {
			macros(macro)
			macro = ""
		}
		next
	}
	if (code ~ /^TE_(BEGIN|END)_DECLS$/)
		next
	text = text code " "
	depth += gsub(/\{/, "{", code) - gsub(/\}/, "}", code)
	if (depth == 0 && text ~ /;[ \t]*$/) {
		statement(trim(text))
		text = ""
	}
}

function macros(s,    name, n, row, i, part)
{
	if (s !~ /^#[ \t]*define/)
		return
	sub(/^#[ \t]*define[ \t]+/, "", s)
	match(s, /^[A-Za-z0-9_]+/)
	name = substr(s, 1, RLENGTH)
	s = substr(s, RLENGTH + 1)
	if (name == "TE_ERRNO_MAP") {
		n = split(s, row, /X\(/)
		for (i = 2; i <= n; i++) { # the first is (X) and white space
			split(row[i], part, ",")
			constant(part[1], trim(part[2]))
			last_errno = trim(part[2])
		}
	} else if (name in c_only || name ~ /_H$|^TE_ATTRS_|^TE__/) {
		return
	} else if (s ~ /^\(/) {
		untranslated(name, "a macro with arguments")
	} else if (name ~ /_INIT$/) {
		s = trim(s)
		init[tolower(substr(name, 1, length(name) - 5))] = substr(s, 2, length(s) - 2)
	} else {
		s = trim(s)
		if (s ~ /^[0-9]+u$/)
			sub(/u$/, "", s)
		if (s ~ /^"[^"]*"$/ || s ~ /^-?[0-9]+$/ || s ~ /^\([A-Z0-9_ +*]+\)$/)
			constant(name, s)
		else
			untranslated(name, s " is not a decimal number")
	}
}

function constant(name, value)
{
	if (value ~ /^[0-9]+$/ && value + 0 > 2147483647)
		untranslated(name, "more than 31 bits")
	else {
		constants[++nconstants] = name
		value_of[name] = value
	}
}

function statement(s,    name, i)
{
	if (s ~ /^struct [a-z0-9_]+;$/)
		return # opaque: a type(c_ptr)
	if (s ~ /^struct [a-z0-9_]+ \{.*\};$/) {
		name = s
		sub(/^struct /, "", name)
		sub(/ .*/, "", name)
		structs[++nstructs] = name
		members(name, substr(s, index(s, "{") + 1))
	} else if (s ~ /^enum [a-z0-9_]+ \{.*\};$/) {
		enumerators(s)
	} else if (s ~ /^typedef [^;{]*\(\*te_[a-z0-9_]+_fn\)\([^;]*;$/) {
		match(s, /te_[a-z0-9_]+_fn/)
		function_pointer[substr(s, RSTART, RLENGTH)] = 1
	} else if (s ~ /^typedef [^;{(]* \**te_[a-z0-9_]+_fn\([^;]*;$/) {
		match(s, /te_[a-z0-9_]+_fn/)
		function_type[substr(s, RSTART, RLENGTH)] = 1
	} else if (s ~ /^TE_EXPORT [^()]*\([^()]*, \.\.\.\)/) {
		return # no interface can have a variable number of arguments
	} else if (s ~ /^TE_EXPORT [^()]*\([^()]*\);$/) {
		sub(/^TE_EXPORT /, "", s)
		i = index(s, "(")
		name = substr(s, 1, i - 1)
		sub(/.*[ *]/, "", name)
		functions[++nfunctions] = name
		result[name] = trim(substr(s, 1, i - 1 - length(name)))
		arguments[name] = substr(s, i + 1, length(s) - i - 2)
		documented[name] = doc
	} else {
		untranslated(substr(s, 1, 60), "an unknown kind of declaration")
	}
}

function enumerators(s,    n, i, part, name, next_value)
{
	name = s
	sub(/^enum /, "", name)
	sub(/ .*/, "", name)
	enums[name] = 1
	if (name == "te_errno") { # its names are TE_ERRNO_MAP's
		constant("TE_ERRNO_END", last_errno + 1)
		return
	}
	s = substr(s, index(s, "{") + 1)
	sub(/\};$/, "", s)
	n = split(s, part, ",")
	next_value = 0
	for (i = 1; i <= n; i++) {
		s = trim(part[i])
		if (s ~ /^[A-Z0-9_]+$/) {
			constant(s, next_value++)
		} else if (s ~ /^[A-Z0-9_]+ = -?[0-9]+$/) {
			name = s
			sub(/ .*/, "", name)
			sub(/.* /, "", s)
			constant(name, s)
			next_value = s + 1
		} else if (s != "") {
			untranslated(s, "an enumerator that is not a decimal number")
		}
	}
}

# members NAME TEXT: count[NAME], and of each "NAME,i": member, mtype, extent
function members(name, s,    n, i, m, k, part, d, decl, base, stars, len)
{
	sub(/\} *;$/, "", s)
	count[name] = 0
	n = split(s, decl, ";")
	for (i = 1; i <= n; i++) {
		d = trim(decl[i])
		if (d == "")
			continue
		if (d ~ /\(\*[a-z0-9_]+\) ?\(/) {
			match(d, /\(\*[a-z0-9_]+/)
			member_of(name, substr(d, RSTART + 2, RLENGTH - 2), "function", "")
			continue
		}
		# const struct te_x *const *a, *b
		gsub(/\*/, " * ", d)
		m = split(d, part, ",")
		base = trim(part[1])
		gsub(/(^| )(const|struct)( |$)/, " ", base)
		gsub(/(^| )(const|struct)( |$)/, " ", base)
		gsub(/ \*/, "", base)
		base = trim(base)
		sub(/ [a-z0-9_]+(\[[A-Za-z0-9_]+\])?$/, "", base)
		if (base ~ /^enum /)
			base = "int"
		for (k = 1; k <= m; k++) {
			d = trim(part[k])
			stars = d ~ /\*/
			sub(/.* /, "", d)
			len = ""
			if (d ~ /\[[A-Za-z0-9_]+\]$/) {
				len = d
				sub(/^[^[]*\[/, "", len)
				sub(/\]/, "", len)
				sub(/\[.*/, "", d)
			}
			if (d !~ /^[a-z][a-z0-9_]*$/)
				untranslated(name, "a member " trim(decl[i]))
			member_of(name, d, stars ? "pointer" : base, len)
		}
	}
}

function member_of(name, m, type, len,    i)
{
	i = ++count[name]
	member[name, i] = m
	mtype[name, i] = type
	extent[name, i] = len
}

# ---- layout, of 64-bit systems ----

# elements NAME I: of its member I, 1 if it is no array
function elements(name, i,    s)
{
	s = extent[name, i]
	if (s == "")
		return 1
	if (s in value_of)
		s = value_of[s]
	if (s !~ /^[0-9]+$/)
		untranslated(name, "an array of " s)
	return s + 0
}

# layout NAME: sets size_of and align_of
function layout(name,    i, t, size, align, at, most)
{
	if (name in size_of)
		return
	at = 0
	most = 1
	for (i = 1; i <= count[name]; i++) {
		t = mtype[name, i]
		if (t == "pointer" || t == "function" || t in function_pointer) {
			size = align = 8
		} else if (t in bytes) {
			size = align = bytes[t]
		} else if (t in count) {
			layout(t)
			size = size_of[t]
			align = align_of[t]
		} else {
			untranslated(name, "a member of type " t)
			size = align = 1
		}
		if (align > most)
			most = align
		at = int((at + align - 1) / align) * align
		at += size * elements(name, i)
	}
	size_of[name] = int((at + most - 1) / most) * most
	align_of[name] = most
}

function is_sized(name)
{
	return member[name, 1] == "size" && mtype[name, 1] == "size_t"
}

# ---- the module ----

# put INDENT TEXT: in lines of at most 96 columns, broken after ", " or before " +"
function put(indent, s,    i, cut, more)
{
	while (length(indent s) > 96) {
		cut = 0
		for (i = 1; i <= 92 - length(indent); i++)
			if (substr(s, i, 2) == ", ")
				cut = i + 1
			else if (substr(s, i, 2) == " +")
				cut = i
		if (!cut)
			break
		print indent substr(s, 1, cut) "&"
		s = substr(s, cut + 1)
		if (!more)
			indent = indent "  "
		more = 1
	}
	print indent s
}

# the name of a constant: Fortran ignores case, so some are a function's
function constant_name(name)
{
	return (tolower(name) in result) || (tolower(name) in count) ? name "_CONST" : name
}

function put_constant(name,    v)
{
	v = value_of[name]
	name = constant_name(name)
	if (v ~ /^"/) {
		print "  character(len=*), parameter, public :: " name " = &"
		print "    " v
		return
	}
	put("  ", "integer(c_int), parameter, public :: " name " = " v)
}

# the initial value of one member
function initial(name, i, v,    t, n, part, j, s)
{
	t = mtype[name, i]
	v = trim(v)
	if (t == "pointer" || t == "function" || t in function_pointer) {
		if (v !~ /^(0|NULL|\{ ?0 ?\})?$/)
			untranslated(name, member[name, i] " begins as " v)
		return t == "pointer" ? "c_null_ptr" : "c_null_funptr"
	}
	if (v ~ /^sizeof/)
		return size_of[name] "_c_size_t"
	if (extent[name, i] != "") {
		if (v !~ /^(\{ ?0 ?\})?$/)
			untranslated(name, member[name, i] " begins as " v)
		return t == "char" ? "c_null_char" : "0"
	}
	if (t in count) {
		if (v == "")
			return t "()"
		sub(/^\{/, "", v)
		sub(/\}$/, "", v)
		n = values(v, part)
		for (j = 1; j <= count[t]; j++)
			s = s (j > 1 ? ", " : "") initial(t, j, j <= n ? part[j] : "")
		return t "(" s ")"
	}
	if (v == "")
		v = "0"
	if (t == "float" || t == "double") {
		sub(/f$/, "", v)
		return v "_c_" t
	}
	if (v in value_of)
		return constant_name(v)
	if (v !~ /^-?[0-9]+$/)
		untranslated(name, member[name, i] " begins as " v)
	return v
}

# values TEXT PART: split at commas outside braces
function values(s, part,    i, c, d, n)
{
	split("", part)
	n = 1
	for (i = 1; i <= length(s); i++) {
		c = substr(s, i, 1)
		d += (c == "{") - (c == "}")
		if (c == "," && d == 0)
			n++
		else
			part[n] = part[n] c
	}
	return n
}

function put_struct(name,    i, n, t, v, part)
{
	if (name in done)
		return
	done[name] = 1
	for (i = 1; i <= count[name]; i++)
		if (mtype[name, i] in count)
			put_struct(mtype[name, i])
	layout(name)
	n = name in init ? values(init[name], part) : 0
	if (n > count[name])
		untranslated(name, "its INIT macro has more values than it has members")
	print "\n  type, bind(C), public :: " name
	for (i = 1; i <= count[name]; i++) {
		t = mtype[name, i]
		v = i <= n ? part[i] : ""
		if (i == 1 && is_sized(name))
			v = "sizeof"
		if (t == "pointer")
			t = "type(c_ptr)"
		else if (t == "function" || t in function_pointer)
			t = "type(c_funptr)"
		else if (t in count)
			t = "type(" t ")"
		else if (t in ftype) # else layout() has reported it
			t = ftype[t]
		put("    ", t " :: " member[name, i] \
			(extent[name, i] == "" ? "" : "(" extent[name, i] ")") " = " initial(name, i, v))
	}
	print "  end type"
}

# nullable FUNCTION ARGUMENT: its comment says that it may be NULL
function nullable(fn, arg,    n, i, line, in_arg)
{
	if (arg == "opts")
		return 1
	n = split(documented[fn], line, "\n")
	for (i = 1; i <= n; i++) {
		if (line[i] ~ /^ \* @/)
			in_arg = line[i] ~ ("^ \\* @([a-z0-9_]+, @)*" arg "[:,]")
		else if (line[i] ~ /^ \*$/)
			in_arg = 0
		if (in_arg && line[i] ~ /NULL/)
			return 1
	}
	return 0
}

# argument FUNCTION DECLARATION: its declaration; sets arg_name
function argument(fn, d,    is_const, stars, base, f, is_array, is_out)
{
	is_const = d ~ /^ *const /
	stars = gsub(/\*/, " * ", d)
	arg_name = d = trim(d)
	sub(/.* /, "", arg_name)
	base = " " d
	sub(/ [^ ]*$/, "", base)
	gsub(/ const/, " ", base)
	gsub(/ struct/, " ", base)
	gsub(/\*/, "", base)
	base = trim(base)
	is_array = (fn " " arg_name) in array
	is_out = arg_name ~ /^ret/
	if (arg_name !~ /^[a-z][a-z0-9_]*$/ || (base in enums) || arg_name in used_arg) {
		untranslated(fn, "argument " d)
		return ""
	}
	used_arg[arg_name] = 1
	if (base ~ /^enum /)
		base = "int"

	if (stars == 0) {
		if (base in ftype)
			return ftype[base] ", value :: " arg_name
		if (base in function_pointer)
			return "type(c_funptr), value :: " arg_name
		if (base in count)
			return "type(" base "), value :: " arg_name
		untranslated(fn, "argument " d)
		return ""
	}
	if (stars == 1 && base in function_type)
		return "type(c_funptr), value :: " arg_name
	if (stars == 1 && !(base in count) && !(base in ftype) ||
	    stars == 1 && base == "float" && !is_out)
		return "type(c_ptr), value :: " arg_name
	if (stars == 1) {
		f = base in count ? "type(" base ")" : ftype[base]
		if (base == "char" || is_const && !(base in count))
			is_array = 1
		f = f ", intent(" (is_const ? "in" : "inout") ")"
	} else if (stars == 2 && d ~ / \* const \*/) {
		f = "type(c_ptr), intent(in)"
		is_array = 1
	} else if (stars == 2 && is_out && !is_const) {
		f = "type(c_ptr), intent(inout)"
	} else {
		untranslated(fn, "argument " d)
		return ""
	}
	if (nullable(fn, arg_name))
		f = f ", optional"
	return f " :: " arg_name (is_array ? "(*)" : "")
}

function put_function(fn,    r, n, i, part, decl, names, specific)
{
	split("", used_arg)
	n = arguments[fn] == "void" ? 0 : split(arguments[fn], part, ",")
	for (i = 1; i <= n; i++) {
		decl[i] = argument(fn, part[i])
		if (decl[i] == "")
			return
		names = names (i > 1 ? ", " : "") arg_name
	}
	r = result[fn]
	sub(/^const /, "", r)
	if (r ~ /\*$/)
		r = "type(c_ptr)"
	else if (r ~ /^enum /)
		r = "integer(c_int)"
	else if (r in ftype)
		r = ftype[r]
	else if (r != "void") {
		untranslated(fn, "result " r)
		return
	}
	# a function with the name of a type is reached by an interface of that name, which is public
	specific = fn in count ? fn "_fn" : fn
	if (fn in count && r == "void") {
		untranslated(fn, "a subroutine with the name of a type")
		return
	}
	print ""
	if (!(fn in count))
		print "  public :: " fn
	print "  interface" (fn in count ? " " fn : "")
	put("    ", (r == "void" ? "subroutine " : "function ") specific "(" names ") &")
	print "        bind(C, name=\"" fn "\")" (r == "void" ? "" : " result(res)")
	print "      import"
	for (i = 1; i <= n; i++)
		put("      ", decl[i])
	if (r != "void")
		print "      " r " :: res"
	print "    end " (r == "void" ? "subroutine" : "function")
	print "  end interface"
}

function module(    i, name)
{
	print "! te.f90 - libtecore, libtegraph and libtecomm from Fortran 2018: see te_fortran(7)."
	print "! Made from the headers of te by fortran.awk."
	print "module te"
	print "  use, intrinsic :: iso_c_binding"
	print "  implicit none"
	print "  private"
	print ""
	for (i = 1; i <= nconstants; i++)
		put_constant(constants[i])
	print ""
	print "  ! sizes below are of 64-bit systems: elsewhere this is a division by zero"
	print "  integer, parameter :: is_64_bit = 1 / merge(1, 0, c_intptr_t == 8)"
	for (i = 1; i <= nstructs; i++)
		put_struct(structs[i])
	for (i = 1; i <= nfunctions; i++)
		put_function(functions[i])
	print "\n  public :: te_free, te_string"
	print "  interface"
	print "    ! free(3): releases a text that a function allocated"
	print "    subroutine te_free(text) bind(C, name=\"free\")"
	print "      import"
	print "      type(c_ptr), value :: text"
	print "    end subroutine"
	print "    function c_strlen(text) bind(C, name=\"strlen\") result(n)"
	print "      import"
	print "      type(c_ptr), value :: text"
	print "      integer(c_size_t) :: n"
	print "    end function"
	print "  end interface"
	print ""
	print "contains"
	print ""
	print "  ! a copy of a C string; empty for NULL"
	print "  function te_string(text) result(res)"
	print "    type(c_ptr), intent(in) :: text"
	print "    character(len=:), allocatable :: res"
	print "    character(kind=c_char), pointer :: c(:)"
	print "    integer :: i"
	print ""
	print "    if (.not. c_associated(text)) then"
	print "      res = \"\""
	print "      return"
	print "    end if"
	print "    call c_f_pointer(text, c, [c_strlen(text)])"
	print "    allocate (character(len=size(c)) :: res)"
	print "    do i = 1, size(c)"
	print "      res(i:i) = c(i)"
	print "    end do"
	print "  end function"
	print "end module"
	if ("te_free" in result || "te_string" in result)
		untranslated("te_free, te_string", "names of this module")
	for (i = 1; i <= nbad; i++)
		print "! untranslated: " bad[i]
}

# ---- the two programs ----

function c_program(    i, j, name)
{
	print "#include <stdio.h>\n#include <te/te.h>"
	for (i = 1; i < ARGC; i++) # of a library that te/te.h leaves out
		if (ARGV[i] ~ /\/token\.h$/)
			print "#include <te/token.h>"
	print "static void dump(const void *p, size_t n)\n{"
	print "\tfor (size_t i = 0; i < n; i++)"
	print "\t\tprintf(\"%d%c\", ((const signed char *)p)[i], i + 1 < n ? ' ' : '\\n');\n}"
	print "int main(void)\n{"
	for (i = 1; i <= nconstants; i++) {
		name = constants[i]
		print "\tprintf(\"" name " %" (value_of[name] ~ /^"/ ? "s" : "d") "\\n\", " \
			(value_of[name] ~ /^"/ ? "" : "(int)") name ");"
	}
	for (i = 1; i <= nstructs; i++) {
		name = structs[i]
		print "\t{"
		print "\t\tstatic const struct " name " o" \
			(name in init ? " = " toupper(name) "_INIT" : \
			is_sized(name) ? " = { .size = sizeof(o) }" : "") ";"
		print "\t\tprintf(\"" name " %zu\\n\", sizeof(o));"
		for (j = 1; j <= count[name]; j++)
			print "\t\tprintf(\"" name "%%" member[name, j] " %zu %zu\\n\", offsetof(struct " \
				name ", " member[name, j] "), sizeof(o." member[name, j] "));"
		print "\t\tdump(&o, sizeof(o));"
		print "\t}"
	}
	print "\treturn 0;\n}"
}

function fortran_program(    i, j, name, v)
{
	print "program layout\n  use, intrinsic :: iso_c_binding\n  use te\n  implicit none"
	for (i = 1; i <= nconstants; i++) {
		name = constants[i]
		print "  print '(a, 1x, " (value_of[name] ~ /^"/ ? "a" : "i0") ")', '" name "', " \
			constant_name(name)
	}
	for (i = 1; i <= nstructs; i++)
		print "  call t" i "()"
	print "contains"
	for (i = 1; i <= nstructs; i++) {
		name = structs[i]
		print "  subroutine t" i "()"
		print "    type(" name "), target, save :: o"
		print "    integer(c_int8_t), pointer :: p(:)"
		print "    print '(a, 1x, i0)', '" name "', c_sizeof(o)"
		for (j = 1; j <= count[name]; j++) {
			v = "o%" member[name, j]
			put("    ", "print '(a, 1x, i0, 1x, i0)', '" name "%" member[name, j] "', " \
				"addr(c_loc(" v ")) - addr(c_loc(o)), c_sizeof(" v ")")
		}
		print "    call c_f_pointer(c_loc(o), p, [c_sizeof(o)])"
		print "    print '(*(i0, :, 1x))', p"
		print "  end subroutine"
	}
	print "  function addr(p)"
	print "    type(c_ptr), intent(in) :: p"
	print "    integer(c_intptr_t) :: addr"
	print "    addr = transfer(p, addr)"
	print "  end function"
	print "end program"
}

END {
	if (out == "c")
		c_program()
	else if (out == "fortran")
		fortran_program()
	else
		module()
}
