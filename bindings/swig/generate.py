# SPDX-License-Identifier: Apache-2.0
"""Writes the values, options and enums of a language from the C headers.

Usage: generate.py --language java|csharp|python --include FOLDER --out FOLDER [--members FOLDER] [--swig SWIG]
                   [-- ARGUMENT_OF_SWIG...]

SWIG parses the headers (swig -xml); the documentation is that of the headers' comments. With arguments for SWIG, SWIG
then writes the calls. FOLDER is emptied first, so that no class of an older interface is left in it. For Python it
gets values.py, and values.i for SWIG.

The rules, which a new field, flag, enumerator or struct follows without work:
 - `typedef uint32_t gmm_x;` before an enum makes it the enum X. The enumerators lose their common prefix.
 - A struct *_info (and gmm_lease_ask) is an answer: an immutable value, decoded from the bytes of the C struct.
 - A struct *_desc is a class of options, which encodes itself into the bytes of the C struct (struct.h).
 - A field whose comment begins with `GMM_X_*` holds the flags of that prefix: each is a property that is true or false.
   The number itself is shown if the field has another name than `flags`.
 - A field whose comment begins with "1 if" or "1:" is true or false. Reserved fields, fields that must be 0, functions
   and handles are left out.
 - Text and lists of options (a pointer, with `<singular>_count` beside it) lie behind the struct.
 - A field that has the name of a flag of its struct sets that flag (gmm_scope_desc).
 - FOLDER/<Class>.java of --members has the members of a class that are written by hand. C# has partial classes.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree

# Names that the rules do not give, which the languages have used since their first version.
TYPE_NAMES = {'gmm_tag_info': 'pause_info', 'gmm_stats_info': 'statistics', 'gmm_scope_desc': 'scope',
              'gmm_ipc_legacy_info': 'legacy_handle', 'gmm_lease_request_desc': 'lease_request'}
FIELD_NAMES = {'gmm_context_desc.log': 'logger'}
FLAG_NAMES = [(re.compile(r'GMM_IPC_ROUTE_(\w+)'), r'\1_ipc')]
# Flags that a program passes around are an enum of their own.
FLAG_ENUMS = {'GMM_WATCH_': 'watch_event'}
# Numbers, though some of their values have names.
SCALARS = {'gmm_tag', 'gmm_device', 'gmm_stream'}
# The interface of a language that stands for a callback. Other callbacks are left to C.
CALLBACKS = {'gmm_log_callback': 'logger', 'gmm_progress_callback': 'progress'}
# Lists and callbacks that a call gets beside the options.
ARGUMENTS = {'gmm_pause_desc.tags', 'gmm_watch_desc.callback'}
# Classes that only the hand-written layers use.
INTERNAL = {'gmm_ipc_fd_info', 'gmm_snapshot_info', 'gmm_pin_desc', 'gmm_move_desc', 'gmm_compact_desc',
            'gmm_ipc_import_desc', 'gmm_ipc_fd_desc', 'gmm_stream_desc', 'gmm_event_desc'}
# Made of functions, so C and C++ alone have it; and descriptors of leases, which the hand-written layers read.
LEFT_OUT = ('gmm_semaphore_', 'gmm_lease_desc', 'gmm_lease_request_desc', 'gmm_lease_ask', 'gmm_lease_amount')
MILLISECONDS = {'java': 'millis', 'csharp': 'milliseconds', 'python': 'ms'}
MICROSECONDS = {'java': 'micros', 'csharp': 'microseconds', 'python': 'us'}
NOTICE = 'Written by bindings/swig/generate.py from include/gmm.'


# --- The model: what SWIG read, with the headers' comments ----------------------------------------------------

class Enumerator:
    def __init__(self, c_name, value, doc):
        self.c_name, self.value, self.doc = c_name, value, doc


class Enum:
    """c_name: that of its type, or None for flags; prefix: what all enumerators begin with."""

    def __init__(self, c_name, items, doc):
        self.c_name, self.items, self.doc = c_name, items, doc
        names = [item.c_name for item in items]
        common = names[0]
        while len(names) > 1 and not all(name.startswith(common) for name in names):
            common = common[:-1]
        self.prefix = common[:common.rfind('_') + 1] if len(names) > 1 else '_'.join(common.split('_')[:2]) + '_'

    def short(self, item):
        name = item.c_name[len(self.prefix):] if item.c_name.startswith(self.prefix) else item.c_name
        return name[len('ERROR_'):] if self.c_name == 'gmm_result' and name.startswith('ERROR_') else name


class Field:
    """kind: what a language makes of it; see Model.kind_of()."""

    def __init__(self, c_name, c_type, count, pointer, doc):
        self.c_name, self.c_type, self.count, self.pointer, self.doc = c_name, c_type, count, pointer, doc
        self.kind, self.at, self.size, self.flags, self.element = 'skip', 0, 0, [], None


class Struct:
    def __init__(self, c_name, fields, doc):
        self.c_name, self.fields, self.doc, self.size = c_name, fields, doc, 0

    @property
    def is_options(self):
        return self.c_name.endswith('_desc')


def comments_of(text):
    """The comments of a header by what they describe: a type, an enumerator, "struct.field", or "enum FIRST"."""
    token = re.compile(r'/\*\*(?P<after><?)(?P<doc>.*?)\*/|/\*.*?\*/|typedef struct (?P<struct>\w+) \{'
                       r'|(?P<enum>\benum \{)|(?P<end>\} ?\w*;)|#define (?P<macro>GMM_\w+)[^\n/]*'
                       r'|typedef [^;{]*?(?P<typedef>\w+);|(?P<item>GMM_\w+)(?: = [^,/}]*)?,?|'
                       r'(?P<field>[^;{}/*#]*?[^;{}/#]*;)', re.S)
    found, pending, last, struct, in_enum = {}, None, None, None, None
    for match in token.finditer(text):
        if match['doc'] is not None:
            doc = '\n'.join(re.sub(r'^\s*\* ?', '', line) for line in match['doc'].strip().split('\n')).strip()
            if match['after']:
                for name in last or []:
                    found[name] = doc
            else:
                pending = doc
            continue
        if match['struct']:
            struct, last = match['struct'], [match['struct']]
        elif match['enum']:
            in_enum, last = True, None
        elif match['end']:
            struct = in_enum = pending = last = None
            continue
        elif match['macro'] or match['typedef']:
            last = [match['macro'] or match['typedef']]
        elif match['item'] and in_enum:
            last = [match['item']]
            if in_enum is True:
                in_enum = match['item']
        elif match['field'] and struct:
            last = [f'{struct}.{name}' for name in re.findall(r'(\w+)(?:\[\w+\])?\s*[,;]', match['field'])]
        elif match['field']:
            last = pending = None
            continue
        else:
            continue
        if pending is not None and last is not None:
            for name in last:
                found[name] = pending
            pending = None
    return found


def number(text):
    """The value of a constant expression of C; None when it has none."""
    text = {'UINT64_MAX': '0xffffffffffffffff', 'UINT32_MAX': '0xffffffff'}.get(text.strip(), text)
    text = re.sub(r'\b(0x[0-9a-fA-F]+|\d+)[uUlL]+\b', r'\1', text)
    cast = re.fullmatch(r'\(\((?:gmm_\w+|u?int\d+_t)\)(-?\d+)\)', text.strip())
    text = cast[1] if cast else text
    return eval(text, {}) if re.fullmatch(r'[-\d\sa-fA-Fx<|()+]+', text) else None


class Model:
    def __init__(self, swig, include):
        self.comments, self.enums, self.structs, self.typedefs, self.constants = {}, [], {}, {}, {}
        umbrella = (include / 'gmm' / 'gmm.h').read_text()
        headers = re.findall(r'#include <(gmm/\w+\.h)>', umbrella)
        for header in headers:
            text = (include / header).read_text()
            self.comments.update(comments_of(text))
            for name, value in re.findall(r'^#define (GMM_\w+) ([^\n]+?)\s*(?:/\*.*)?$', text, re.M):
                if number(value) is not None:
                    self.constants[name] = number(value)
        with tempfile.TemporaryDirectory() as scratch:
            source = pathlib.Path(scratch) / 'headers.i'
            source.write_text('%module headers\n#define GMM_API\n#define GMM_NOEXCEPT\n#define GMM_NODISCARD\n'
                              + ''.join(f'%include <{header}>\n' for header in headers))
            subprocess.run([swig, '-xml', f'-I{include}', '-o', f'{scratch}/headers.xml', str(source)], check=True)
            self.read(ElementTree.parse(f'{scratch}/headers.xml').getroot(), None)
        self.handles = [name for name, c_type in self.typedefs.items()
                        if c_type == f'struct {name}' and name not in self.structs]
        for struct in self.structs.values():
            self.place(struct)

    def read(self, node, before):
        for child in node:
            values = {item.get('name'): item.get('value') for item in child.findall('attributelist/attribute')}
            name, decl = values.get('name', ''), values.get('decl', '')
            if child.tag == 'cdecl' and values.get('kind') == 'typedef' and not decl:
                self.typedefs[name] = values['type']
            if child.tag == 'enum' and child.findall('enumitem'):
                self.add_enum(child, before)
            elif child.tag == 'class' and name.startswith('gmm_'):
                self.add_struct(name, child)
            elif child.tag in ('include', 'attributelist'):
                self.read(child, None)
            before = name if child.tag == 'cdecl' and values['type'] in ('uint32_t', 'int32_t') and not decl else None

    def add_enum(self, node, before):
        items, value = [], -1
        for item in node.findall('enumitem'):
            values = {each.get('name'): each.get('value') for each in item.findall('attributelist/attribute')}
            written = values.get('enumvalue') or values.get('enumvalueex')
            value = number(written) if written is not None and number(written) is not None else value + 1
            items.append(Enumerator(values['name'], value, self.comments.get(values['name'], '')))
        if before in SCALARS:
            self.constants.update({item.c_name: item.value for item in items})
        else:
            self.enums.append(Enum(before, items, self.comments.get(before or '', '')))

    def add_struct(self, name, node):
        fields = []
        for item in node.findall('cdecl'):
            values = {each.get('name'): each.get('value') for each in item.findall('attributelist/attribute')}
            decl = values.get('decl', '')
            array = re.search(r'a\((\d+)\)', decl)
            fields.append(Field(values['name'], values['type'].replace('q(const).', '').replace('struct ', ''),
                                int(array[1]) if array else 0, 'function' if 'f(' in decl else decl.startswith('p.'),
                                self.comments.get(f'{name}.{values["name"]}', '')))
        self.structs[name] = Struct(name, fields, self.comments.get(name, ''))

    def enum_of(self, c_type):
        return next((enum for enum in self.enums if enum.c_name == c_type), None)

    def size_of(self, field):
        if field.pointer or field.c_type.startswith('p.'):
            return 8
        c_type = field.c_type
        while c_type in self.typedefs and c_type not in self.structs:
            c_type = self.typedefs[c_type]
        if c_type in self.structs:
            self.place(self.structs[c_type])
            return self.structs[c_type].size
        sizes = {'uint32_t': 4, 'int32_t': 4, 'uint64_t': 8, 'int64_t': 8, 'char': 1, 'uint8_t': 1}
        return 8 if c_type not in sizes else sizes[c_type]

    def place(self, struct):
        """Gives each field its place; rule 4 of the interface: no hidden padding, multiples of 8."""
        at = 0
        for field in struct.fields:
            field.at, field.size = at, self.size_of(field)
            at += field.size * max(field.count, 1)
        struct.size = at
        for field in struct.fields:
            field.kind = self.kind_of(struct, field)

    def kind_of(self, struct, field):
        name, doc, c_type = field.c_name, field.doc, field.c_type
        flags = re.match(r'(GMM_\w+_)\*', doc)
        if name in ('struct_size', 'reserved') or doc.rstrip('.') in ('0', 'must be 0') or field.pointer == 'function':
            return 'skip'
        if flags:
            all_flags = {item.c_name: item for enum in self.enums if enum.c_name is None for item in enum.items}
            named = re.findall(r'GMM_[A-Z_]+[A-Z]\b', doc)
            field.flags = [item for key, item in all_flags.items() if key.startswith(flags[1]) or key in named]
            if flags[1] in FLAG_ENUMS:
                field.element = flags[1]
                return 'events' if struct.is_options else 'event'
            return 'flags'
        if field.pointer:
            if c_type == 'char':
                return 'text'
            if any(other.c_name == name[:-1] + '_count' for other in struct.fields):
                field.element = c_type
                return 'list'
            return 'skip' if c_type in self.handles else 'address'
        if any(other.pointer and other.c_name[:-1] + '_count' == name for other in struct.fields):
            return 'skip'
        if field.count:
            return 'name' if c_type == 'char' else 'bytes'
        if c_type in CALLBACKS:
            return 'callback'
        if f'{struct.c_name}.{name}' in ARGUMENTS:
            return 'callback'
        if c_type in self.structs:
            return 'skip'
        if c_type == 'gmm_stream':
            return 'stream' if struct.is_options else 'address'
        if c_type == 'gmm_tag' and struct.is_options:
            return 'tag'
        if c_type.endswith('_mask'):
            field.element = c_type[:-len('_mask')]
            return 'mask'
        if self.enum_of(c_type):
            return 'enum'
        if re.match(r'1( if|:)', doc) and c_type == 'uint32_t':
            return 'bool'
        return 'u64' if field.size == 8 else 'i32' if self.typedefs.get(c_type, c_type) == 'int32_t' else 'u32'

    def answers(self):
        return [struct for struct in self.values() if not struct.is_options]

    def options(self):
        return [struct for struct in self.values() if struct.is_options]

    def values(self):
        return [struct for struct in self.structs.values()
                if struct.fields and struct.fields[0].c_name == 'struct_size'
                and not struct.c_name.startswith(LEFT_OUT)]

    def types(self):
        return [enum for enum in self.enums if enum.c_name and not enum.c_name.startswith(LEFT_OUT)]

    def flag_enums(self):
        for prefix, name in FLAG_ENUMS.items():
            found = next((enum for enum in self.enums if enum.c_name is None and enum.prefix == prefix), None)
            if found:
                yield name, found

    def is_unbounded(self, field):
        """Whether a number may stand for all bits, so that it may be negative in a language without a sign."""
        special = [name for name, value in self.constants.items() if value == 0xffffffffffffffff]
        return any(name in field.doc for name in special) or field.doc.startswith('bit ')


# --- Names and documentation ----------------------------------------------------------------------------------

class Writer:
    """What the languages share. A subclass writes one."""
    language = ''

    def __init__(self, model, out, members):
        self.model, self.out, self.members = model, out, members

    def words(self, name):
        words = name.lower().strip('_').split('_')
        units = {'ms': MILLISECONDS, 'us': MICROSECONDS}
        return [units[word][self.language] if word in units and i else word for i, word in enumerate(words)]

    def pascal(self, name):
        return ''.join(word.capitalize() for word in self.words(name))

    def camel(self, name):
        made = self.pascal(name)
        return made[0].lower() + made[1:]

    def type_name(self, c_name):
        name = TYPE_NAMES.get(c_name) or re.sub('_desc$', '_options', c_name[len('gmm_'):])
        return self.pascal(name)

    def flag_name(self, field, item):
        for pattern, name in FLAG_NAMES:
            if pattern.fullmatch(item.c_name):
                return pattern.sub(name, item.c_name)
        enum = next(enum for enum in self.model.enums if item in enum.items)
        short = enum.short(item)
        return re.sub('^(PAUSE|RESUME)_', '', short)

    def shown(self, struct):
        return [field for field in struct.fields
                if field.kind != 'skip' and f'{struct.c_name}.{field.c_name}' not in ARGUMENTS]

    def field_name(self, struct, field):
        return FIELD_NAMES.get(f'{struct.c_name}.{field.c_name}', field.c_name)

    def text(self, doc, otherwise):
        """Sentences of a comment: the first word has a capital letter, the last a full stop."""
        words = ' '.join(re.sub(r'(?<!^)([A-Z])(?=[a-z])', r' \1', otherwise).lower().replace('_', ' ').split())
        doc = re.sub(r'::(?=\w)', '', doc or f'The {words}.').strip()
        doc = f'The {words} in bytes.' if doc == 'bytes' else doc
        doc = doc[0].upper() + doc[1:] if not re.match(r'(gmm_|GMM_|cu[A-Z]|cuda)', doc) else doc
        return doc if doc[-1] in '.:!?|' else doc + '.'

    def paragraphs(self, doc):
        return [re.sub(r'\s+', ' ', part).strip() for part in re.split(r'\n\s*\n', doc) if part.strip()]

    def scope_flag(self, struct, field):
        """The flag that says that this field applies, or None."""
        for other in struct.fields:
            for item in other.flags:
                if other.kind == 'flags' and self.flag_name(other, item).lower() == field.c_name:
                    return item
        return None

    def own_flags(self, struct, field):
        """The flags that a program sets by themselves."""
        names = {each.c_name for each in struct.fields}
        return [(item, self.flag_name(field, item)) for item in field.flags
                if self.flag_name(field, item).lower() not in names or not struct.is_options]


class Java(Writer):
    language = 'java'
    types = {'bool': 'boolean', 'u32': 'int', 'i32': 'int', 'u64': 'long', 'address': 'long', 'name': 'String',
             'text': 'String', 'bytes': 'byte[]', 'mask': 'int', 'flags': 'int', 'events': 'int', 'tag': 'Tag',
             'stream': 'Stream'}

    def doc(self, doc, otherwise, indent):
        """A javadoc comment."""
        made = []
        for part in self.paragraphs(self.text(doc, otherwise)):
            part = part.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')
            part = re.sub(r'`([^`]*)`', r'{@code \1}', part)
            made.append(('<p>' if made else '') + part)
        if len(made) == 1 and len(made[0]) <= 110 - len(indent):
            return f'{indent}/** {made[0]} */\n'
        lines = [line for part in made for line in [''] + textwrap.wrap(part, 116 - len(indent))][1:]
        return f'{indent}/**\n' + ''.join(f'{indent} * {line}'.rstrip() + '\n' for line in lines) + f'{indent} */\n'

    def write(self):
        for enum in self.model.types():
            self.write_enum(self.type_name(enum.c_name), enum, enum.doc)
        for name, enum in self.model.flag_enums():
            self.write_enum(self.pascal(name), enum, f'{self.pascal(name)}s.')
        for struct in self.model.answers():
            self.write_answer(struct)
        for struct in self.model.options():
            self.write_options(struct)

    def save(self, name, body, is_public=True):
        hand = self.members / f'{name}.java' if self.members else None
        if hand and hand.exists():
            members = hand.read_text().split('*/\n', 1)[1].strip('\n')
            body = body.rstrip()[:-1].rstrip() + '\n\n' + members + '\n}\n'
        head = f'/* SPDX-License-Identifier: Apache-2.0 */\n/* {NOTICE} */\npackage io.gmm;\n\n'
        if not is_public:
            body = body.replace('public final class', 'final class', 1)
        (self.out / f'{name}.java').write_text(head + body)

    def write_enum(self, name, enum, doc):
        items = [(enum.short(item), item.value, item.doc) for item in enum.items]
        if name == 'Result':
            items.append(('UNKNOWN', -2147483648, 'A code of a newer library.'))
        body = self.doc(doc, name, '') + f'public enum {name} {{\n'
        body += ',\n'.join(self.doc(doc, short, '    ') + f'    {short}({value})' for short, value, doc in items)
        other, what = ('UNKNOWN', 'UNKNOWN') if name == 'Result' else ('null', 'null: it is of a newer library')
        body += f"""; // in the order of the header

    private final int value;

    {name}(int value) {{
        this.value = value;
    }}

    /** The number in the C interface. */
    public int value() {{
        return value;
    }}

    /** The constant with that number; {what}. */
    static {name} of(int value) {{
        for ({name} each : values()) {{
            if (each.value == value) {{
                return each;
            }}
        }}
        return {other};
    }}
}}
"""
        self.save(name, body.replace('; // in the order of the header', ';'))

    def type_of(self, field):
        if field.kind == 'enum':
            return self.type_name(field.c_type)
        if field.kind == 'event':
            return self.pascal(FLAG_ENUMS[field.element])
        if field.kind == 'callback':
            return self.pascal(CALLBACKS[field.c_type])
        return self.types[field.kind]

    def write_answer(self, struct):
        name = self.type_name(struct.c_name)
        read = {'u32': 'in.getInt({at})', 'i32': 'in.getInt({at})', 'u64': 'in.getLong({at})',
                'address': 'in.getLong({at})', 'mask': 'in.getInt({at})', 'flags': 'in.getInt({at})',
                'bool': 'in.getInt({at}) != 0', 'enum': '{type}.of(in.getInt({at}))',
                'event': '{type}.of(in.getInt({at}))', 'name': 'Struct.text(in, {at}, {count})',
                'bytes': 'Struct.bytes(in, {at}, {count})'}
        fields = [(self.camel(self.field_name(struct, field)), field) for field in self.shown(struct)]
        body = self.doc(struct.doc, name, '') + f'public final class {name} {{\n'
        body += ''.join(f'    private final {self.type_of(field)} {own};\n' for own, field in fields)
        body += f'\n    /** From the bytes of a {struct.c_name}. */\n    {name}(byte[] from) {{\n'
        body += f'        java.nio.ByteBuffer in = Struct.answer(from, {struct.size});\n'
        for own, field in fields:
            value = read[field.kind].format(at=field.at, count=field.count, type=self.type_of(field))
            body += f'        {own} = {value};\n'
        body += f'    }}\n\n    /** Bytes for C to fill. */\n    static byte[] bytesForC() {{\n'
        body += f'        return Struct.forAnswer({struct.size});\n    }}\n'
        shown = []
        for own, field in fields:
            if field.kind != 'flags' or own != 'flags':
                value = f'{own}.clone()' if field.kind == 'bytes' else own
                body += '\n' + self.doc(field.doc, field.c_name, '    ')
                body += f'    public {self.type_of(field)} {own}() {{\n        return {value};\n    }}\n'
                shown.append((own, f'Struct.hex({own})' if field.kind in ('address', 'bytes') else own))
            for item, flag in self.own_flags(struct, field) if field.kind == 'flags' else []:
                body += '\n' + self.doc(item.doc, flag, '    ')
                body += f'    public boolean {self.camel(flag)}() {{\n'
                body += f'        return ({own} & {item.value}) != 0;\n    }}\n'
                shown.append((self.camel(flag), f'{self.camel(flag)}()'))
            if field.kind == 'mask':
                kind = self.type_name(field.element)
                body += f'\n    /** Whether this {kind} is among the {own}. */\n'
                body += f'    public boolean has({kind} value) {{\n'
                body += f'        return ({own} & 1 << value.value()) != 0;\n    }}\n'
        body += self.to_string(name, shown)
        self.save(name, body + '}\n', struct.c_name not in INTERNAL)

    def to_string(self, name, shown):
        lines = [f'"{name}[{shown[0][0]}=" + {shown[0][1]}'] + [f'", {own}=" + {value}' for own, value in shown[1:]]
        return ('\n    @Override\n    public String toString() {\n        return '
                + '\n            + '.join(lines) + '\n            + "]";\n    }\n')

    def write_options(self, struct):
        name = self.type_name(struct.c_name)
        members, setters, encode, arguments, shown = [], [], [], [], []
        put = {'enum': 'putInt({at}, {own}.value())', 'u64': 'putLong({at}, {own})',
               'address': 'putLong({at}, {own})', 'text': 'putText({at}, {own})',
               'tag': 'putInt({at}, {own} == null ? 0 : {own}.number())',
               'stream': 'putLong({at}, {own}.rawAddress())',
               'events': 'putInt({at}, {own} != 0 ? {own} : default{pascal}())'}

        def add(own, parameter, doc, otherwise, code):
            setters.append('\n' + self.doc(doc, otherwise, '    ') + f'    public {name} {own}({parameter}) {{\n'
                           f'        {code}\n        return this;\n    }}\n')

        for field in struct.fields:
            own, at = self.camel(self.field_name(struct, field)), field.at
            is_argument = f'{struct.c_name}.{field.c_name}' in ARGUMENTS
            if field.kind == 'callback':
                arguments.append(f'long {own}User')
                encode.append(f'        to.callback({at}, "{field.c_type}", {own}User);\n')
            elif field.kind == 'list':
                singular = field.c_name[:-1]
                count_at = next(other.at for other in struct.fields if other.c_name == singular + '_count')
                if field.element in self.model.structs:
                    raise SystemExit(f'{struct.c_name}.{field.c_name}: no rule for a list of {field.element}')
                java_type = 'Tag' if field.element == 'gmm_tag' else 'Integer'
                length = f'{own}.length' if is_argument else f'{own}.size()'
                if is_argument:
                    arguments.append(f'{java_type}[] {own}')
                else:
                    members.append(f'    final java.util.List<{java_type}> {own} = new java.util.ArrayList<>();\n')
                    add(self.camel(singular), f'{java_type.replace("Integer", "int")} value', field.doc, singular,
                        f'{own}.add(value);')
                encode.append(f'        if ({length} != 0) {{\n'
                              f'            java.nio.ByteBuffer list = Struct.list(4 * {length});\n'
                              f'            for ({java_type} each : {own}) {{\n'
                              f'                list.putInt({"each.number()" if java_type == "Tag" else "each"});\n'
                              f'            }}\n            to.putList({at}, list);\n'
                              f'            to.putInt({count_at}, {length});\n        }}\n')
                continue
            if field.kind == 'skip' or is_argument:
                continue
            initial = ''
            if field.kind == 'enum':
                enum = self.model.enum_of(field.c_type)
                zero = [enum.short(item) for item in enum.items if item.value == 0]
                initial = f' = {self.type_of(field)}.{zero[0]}' if zero else ''
            elif field.kind == 'stream':
                initial = ' = Stream.DEFAULT'
            members.append(f'    {self.type_of(field)} {own}{initial};\n')
            shown.append((own, own))
            if field.kind == 'flags':
                for item, flag in self.own_flags(struct, field):
                    add(self.camel(flag), '', item.doc, flag, f'{own} |= {item.value};')
            elif field.kind == 'events':
                event = self.pascal(FLAG_ENUMS[field.element])
                add(own, f'{event}... value', field.doc, own, f'{own} = 0;\n        for ({event} each : value) {{\n'
                    f'            {own} |= each.value();\n        }}')
            else:
                is_size = field.kind == 'u64' and not self.model.is_unbounded(field)
                value = f'Text.checkSize("{own}", value)' if is_size else 'value'
                applies = self.scope_flag(struct, field)
                add(own, f'{self.type_of(field)} value', field.doc, field.c_name,
                    f'{own} = {value};' + (f' flags |= {applies.value};' if applies else ''))
            if field.kind != 'callback':
                line = put.get(field.kind, 'putInt({at}, {own})').format(at=at, own=own, pascal=own.capitalize())
                encode.append(f'        to.{line};\n')
        body = self.doc(struct.doc + '\n\nEach method changes this object and returns it.', name, '')
        body += f'public final class {name} {{\n' + ''.join(members + setters)
        body += f'\n    /** The bytes of a {struct.c_name}. */\n    byte[] encode({", ".join(arguments)}) {{\n'
        body += f'        Struct to = new Struct({struct.size});\n{"".join(encode)}        return to.bytes();\n    }}\n'
        self.save(name, body + self.to_string(name, shown) + '}\n', struct.c_name not in INTERNAL)


class CSharp(Writer):
    language = 'csharp'
    types = {'bool': 'bool', 'u32': 'int', 'i32': 'int', 'u64': 'long', 'address': 'IntPtr', 'name': 'string',
             'text': 'string', 'bytes': 'byte[]', 'mask': 'int', 'flags': 'int', 'tag': 'GmmTag', 'stream': 'GmmStream'}

    def doc(self, doc, otherwise, indent='        '):
        """A summary of XML."""
        parts = [part.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')
                 for part in self.paragraphs(self.text(doc, otherwise))]
        if len(parts) == 1 and len(parts[0]) <= 90 - len(indent):
            return f'{indent}/// <summary>{parts[0]}</summary>\n'
        lines = [line for part in parts for line in textwrap.wrap(part, 114 - len(indent))]
        return ''.join(f'{indent}/// {line}\n' for line in ['<summary>'] + lines + ['</summary>'])

    def type_name(self, c_name):
        return 'Gmm' + super().type_name(c_name)

    def flag_enum(self, element):
        return f'Gmm{self.pascal(FLAG_ENUMS[element])}s'

    def type_of(self, field):
        if field.kind == 'enum':
            return self.type_name(field.c_type)
        if field.kind in ('event', 'events'):
            return self.flag_enum(field.element)
        return 'Gmm' + self.pascal(CALLBACKS[field.c_type]) if field.kind == 'callback' else self.types[field.kind]

    def write(self):
        made = [self.enum(self.type_name(enum.c_name), enum, enum.doc) for enum in self.model.types()]
        for name, enum in self.model.flag_enums():
            made.append(self.enum(self.flag_enum(enum.prefix), enum, f'{self.pascal(name)}s.', is_set=True))
        made += [self.answer(struct) for struct in self.model.answers()]
        made += [self.options(struct) for struct in self.model.options()]
        (self.out / 'Values.cs').write_text(
            f'/* SPDX-License-Identifier: Apache-2.0 */\n/* {NOTICE} */\nusing System;\n'
            'using System.Collections.Generic;\n\nnamespace Gmm\n{\n' + '\n'.join(made) + '}\n')

    def enum(self, name, enum, doc, is_set=False):
        items = [('None', 0, 'In options it means all that they concern.')] if is_set else []
        items += [(self.pascal(enum.short(item)), item.value, item.doc) for item in enum.items]
        if name == 'GmmResult':
            items.append(('Unknown', -2147483648, 'A code of a newer library.'))
        body = self.doc(doc, name, '    ') + ('    [Flags]\n' if is_set else '') + f'    public enum {name}\n    {{\n'
        body += ',\n'.join(self.doc(doc, short) + f'        {short} = {value}' for short, value, doc in items)
        return body + '\n    }\n'

    def head(self, struct, name):
        access = 'internal' if struct.c_name in INTERNAL else 'public'
        return self.doc(struct.doc, name, '    ') + f'    {access} sealed partial class {name}\n    {{\n'

    def to_string(self, name, shown):
        lines = [f'"{name} {{ {shown[0]} = " + Show.Value({shown[0]})']
        lines += [f'", {own} = " + Show.Value({own})' for own in shown[1:]]
        return ('\n        /// <inheritdoc/>\n        public override string ToString()\n        {\n            return '
                + '\n                + '.join(lines) + '\n                + " }";\n        }\n    }\n')

    def answer(self, struct):
        name = self.type_name(struct.c_name)
        read = {'u32': 'Int({at})', 'i32': 'Int({at})', 'mask': 'Int({at})', 'flags': 'Int({at})', 'u64': 'Long({at})',
                'address': 'Address({at})', 'bool': 'Int({at}) != 0', 'name': 'Text({at}, {count})',
                'bytes': 'Bytes({at}, {count})'}
        body, properties, shown = '', '', []
        for field in self.shown(struct):
            own = self.pascal(self.field_name(struct, field))
            is_hidden = field.kind == 'flags' and own == 'Flags'
            own = 'flags' if is_hidden else own
            value = read.get(field.kind, 'Int({at})').format(at=field.at, count=field.count)
            cast = f'({self.type_of(field)})' if field.kind in ('enum', 'event') else ''
            body += f'            {own} = {cast}fields.{value};\n'
            if is_hidden:
                properties += '\n        private readonly int flags;\n'
            else:
                properties += '\n' + self.doc(field.doc, field.c_name)
                properties += f'        public {self.type_of(field)} {own} {{ get; }}\n'
                shown.append(own)
            for item, flag in self.own_flags(struct, field) if field.kind == 'flags' else []:
                properties += '\n' + self.doc(item.doc, flag) + f'        public bool {self.pascal(flag)}\n        {{\n'
                properties += f'            get {{ return ({own} & {item.value}) != 0; }}\n        }}\n'
                shown.append(self.pascal(flag))
            if field.kind == 'mask':
                kind = self.type_name(field.element)
                properties += f'\n        /// <summary>Whether this one is among the {own}.</summary>\n'
                properties += f'        public bool Has({kind} value)\n        {{\n'
                properties += f'            return ({own} & 1 << (int)value) != 0;\n        }}\n'
        return (self.head(struct, name) + f'        /// <summary>From the bytes of a {struct.c_name}.</summary>\n'
                f'        internal {name}(byte[] from)\n        {{\n'
                f'            Struct fields = Struct.Answer(from, {struct.size});\n{body}        }}\n\n'
                '        /// <summary>Bytes for C to fill.</summary>\n        internal static byte[] BytesForC()\n'
                f'        {{\n            return Struct.ForAnswer({struct.size});\n        }}\n'
                + properties + self.to_string(name, shown))

    def options(self, struct):
        name = self.type_name(struct.c_name)
        properties, encode, arguments, shown = [], '', [], []
        put = {'u32': 'Put({at}, {own})', 'i32': 'Put({at}, {own})', 'enum': 'Put({at}, (int){own})',
               'u64': 'Put({at}, {own})', 'address': 'Put({at}, (long){own})', 'text': 'PutText({at}, {own})',
               'tag': 'Put({at}, {own} == null ? 0 : {own}.Number)',
               'stream': 'Put({at}, {own} == null ? 0L : (long){own}.RawAddress)',
               'events': 'Put({at}, (int)({own} == {type}.None ? Default{own} : {own}))'}

        def add(own, c_sharp_type, doc, otherwise, rest='get; set; }'):
            properties.append(self.doc(doc, otherwise) + f'        public {c_sharp_type} {own} {{ {rest}\n')
            shown.append(own)

        for field in struct.fields:
            own, at = self.pascal(self.field_name(struct, field)), field.at
            is_argument = f'{struct.c_name}.{field.c_name}' in ARGUMENTS
            if field.kind == 'callback':
                user = own[0].lower() + own[1:] + 'User'
                arguments.append(f'IntPtr {user}')
                encode += f'            fields.Callback({at}, "{field.c_type}", {user});\n'
                if not is_argument:
                    add(own, self.type_of(field), field.doc, field.c_name)
            elif field.kind == 'list':
                count_at = next(each.at for each in struct.fields if each.c_name == field.c_name[:-1] + '_count')
                own = field.c_name if is_argument else own
                if field.element == 'gmm_tag':
                    arguments.append(f'GmmTag[] {own}')
                elif field.element in self.model.structs:
                    raise SystemExit(f'{struct.c_name}.{field.c_name}: no rule for a list of {field.element}')
                else:
                    add(own, 'IList<int>', field.doc, field.c_name, 'get; } = new List<int>();')
                encode += f'            fields.PutList({at}, {count_at}, {own});\n'
            elif field.kind == 'flags':
                items = [(item, self.pascal(flag), '') for item, flag in self.own_flags(struct, field)]
                for item, flag, _ in items:
                    add(flag, 'bool', item.doc, flag)
                for other in struct.fields:
                    item = self.scope_flag(struct, other)
                    if item:
                        items.append((item, self.pascal(other.c_name), ' != null'))
                terms = [f'({flag}{test} ? {item.value} : 0)' for item, flag, test in items]
                encode += f'            fields.Put({at}, {" | ".join(terms)});\n'
            elif field.kind != 'skip':
                is_optional = self.scope_flag(struct, field) and field.kind != 'tag'
                add(own, self.type_of(field) + ('?' if is_optional else ''), field.doc, field.c_name)
                value = f'({own} ?? 0)' if is_optional else own
                if field.kind == 'u64' and not self.model.is_unbounded(field):
                    encode += f'            Show.CheckSize("{own}", {own});\n'
                line = put[field.kind].format(at=at, own=value, type=self.type_of(field))
                encode += f'            fields.{line};\n'
        return (self.head(struct, name) + '\n'.join(properties)
                + f'\n        /// <summary>The bytes of a {struct.c_name}.</summary>\n'
                f'        internal byte[] Encode({", ".join(arguments)})\n        {{\n'
                f'            Struct fields = new Struct({struct.size});\n{encode}'
                '            return fields.Bytes();\n        }\n' + self.to_string(name, shown))


class Python(Writer):
    """A module of enums and of answers, which are named tuples; and for SWIG, the fields of options in C."""
    language = 'python'
    names = {'gmm_tag_info': 'TagInfo', 'gmm_oom_info': 'OutOfMemoryInfo', 'GMM_DEVICE_': 'Capability',
             'GMM_IPC_ROUTE_': 'IpcRoute', 'GMM_WATCH_': 'WatchEvent', 'GMM_': 'PauseFlags'}
    types = {'bool': 'bool', 'name': 'str', 'bytes': 'bytes'}
    codes = {'i32': 'i', 'u64': 'Q', 'address': 'Q'}

    def doc(self, doc, otherwise, indent='    '):
        parts = [textwrap.wrap(part, 114 - len(indent)) for part in self.paragraphs(self.text(doc, otherwise))]
        lines = [line for part in parts for line in [''] + part][1:]
        lines = [line.replace('\\', '\\\\').replace('"', "'") for line in lines]
        end = '"""\n' if len(lines) == 1 else f'\n{indent}"""\n'
        return f'{indent}"""' + f'\n{indent}'.join(lines).replace(f'\n{indent}\n', '\n\n') + end

    def type_name(self, c_name):
        return self.names.get(c_name) or super().type_name(c_name)

    def enum_name(self, one):
        if one.c_name:
            return self.type_name(one.c_name)
        return self.names.get(one.prefix) or self.pascal(one.prefix[len('GMM_'):]) + 'Flags'

    def write(self):
        made = ['# SPDX-License-Identifier: Apache-2.0\n"""The answers, enums and constants of the C interface.\n\n'
                f'{NOTICE}\n"""\nfrom __future__ import annotations\n\nimport enum\nimport struct\n'
                'from typing import NamedTuple\n\n'
                + ''.join(f'{name[len("GMM_"):]} = {value}\n' for name, value in self.model.constants.items()),
                'def _known(kind, value: int):\n    """The enumerator; a number of a newer library stays a number."""\n'
                '    try:\n        return kind(value)\n    except ValueError:\n        return value\n']
        made += [self.enum(one) for one in self.model.enums if not one.c_name or one in self.model.types()]
        asked = self.model.structs['gmm_lease_ask']
        made += [self.answer(struct) for struct in [*self.model.answers(), asked]]
        (self.out / 'values.py').write_text('\n\n'.join(made))
        (self.out / 'values.i').write_text(self.typemaps())

    def typemaps(self):
        """For SWIG: handles and answers, and options with the tables by which fields.c reads them."""
        made = f'/* {NOTICE} */\n'
        made += ''.join(f'GMM_HANDLE({name}, HANDLE_{name[len("gmm_"):].upper()})\n' for name in self.model.handles)
        for struct in self.model.structs.values():
            if struct.is_options and not struct.c_name.startswith('gmm_semaphore_'):
                made += ''.join(self.table(self.model.structs[field.c_type]) for field in struct.fields
                                if field.pointer and field.c_type in self.model.structs)
                made += self.table(struct) + f'GMM_OPTIONS({struct.c_name})\n'
            elif struct.c_name.endswith('_info'):
                made += f'GMM_ANSWER({struct.c_name})\n'
            else:
                made += f'%ignore {struct.c_name};\n'
        return made

    def table(self, struct):
        rows = ''
        for field in struct.fields:
            kind, more = 'Q' if field.size == 8 else self.codes.get(field.kind, 'I'), ''
            callback = re.fullmatch(r'gmm_(\w+)_callback', field.c_type)
            count = next((other for other in struct.fields if other.c_name == field.c_name[:-1] + '_count'), None)
            if callback:
                kind, more = 'C', f', .callback = (void (*)(void))callback_{callback[1]}'
            elif field.pointer and count:
                element = f'&{field.c_type}_struct' if field.c_type in self.model.structs else 'NULL'
                kind, more = 'L', f', .count_at = {count.at}, .element = {element}'
            elif field.pointer:
                kind = 's' if field.c_type == 'char' else 'P'
            elif field.c_type in self.model.structs or field.c_name in ('struct_size', 'reserved'):
                continue  # a host allocator, which stays in C
            rows += f'    {{"{field.c_name}", \'{kind}\', {field.at}{more}}},\n'
        has_size = int(struct.fields[0].c_name == 'struct_size')
        return (f'%{{\nstatic const StructType {struct.c_name}_struct = {{sizeof({struct.c_name}), {has_size}, '
                f'(const StructField[]){{\n{rows}    {{NULL}}}}}};\n%}}\n')

    def enum(self, one):
        body = f'class {self.enum_name(one)}(enum.{"IntEnum" if one.c_name else "IntFlag"}):\n'
        body += self.doc(one.doc, self.enum_name(one))
        for item in one.items:
            body += f'    {re.sub("^CAN_", "", one.short(item))} = {item.value}\n'
            body += self.doc(item.doc, '') if item.doc else ''
        return body

    def field(self, field):
        """The type of a field, and the expression that reads it from the bytes."""
        code = f'{field.count}s' if field.kind in ('name', 'bytes') else self.codes.get(field.kind, 'I')
        if field.c_type == 'gmm_result':
            code = 'i'
        value = f"struct.unpack_from('{code}', data, {field.at})[0]"
        if field.kind == 'name':
            value = f"{value}.partition(b'\\0')[0].decode()"
        elif field.kind == 'bool':
            value += ' != 0'
        elif field.kind == 'mask':
            name = self.type_name(field.element)
            return f'tuple[{name}, ...]', f'tuple(_known({name}, bit) for bit in range(32) if {value} >> bit & 1)'
        elif field.kind in ('enum', 'event', 'flags'):
            name = self.enum_name(self.model.enum_of(field.c_type) if field.kind == 'enum' else
                                  next(one for one in self.model.enums if field.flags[0] in one.items))
            return name, f'_known({name}, {value})'
        return self.types.get(field.kind, 'int'), value

    def answer(self, struct):
        name, fields, values = self.type_name(struct.c_name), '', []
        for field in self.shown(struct):
            kind, value = self.field(field)
            fields += f'    {field.c_name}: {kind}\n' + self.doc(field.doc, field.c_name)
            values.append(value)
        return (f'class {name}(NamedTuple):\n' + self.doc(struct.doc, name) + fields
                + f'\n    @classmethod\n    def unpack(cls, data: bytes) -> {name}:\n'
                f'        """From the bytes of a {struct.c_name}; what an older library lacks is 0."""\n'
                f'        data = bytes(data[:{struct.size}]).ljust({struct.size}, b\'\\0\')\n'
                '        return cls(\n            ' + ',\n            '.join(values) + ')\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--language', required=True, choices=['java', 'csharp', 'python'])
    parser.add_argument('--include', required=True, type=pathlib.Path)
    parser.add_argument('--out', required=True, type=pathlib.Path)
    parser.add_argument('--members', type=pathlib.Path)
    parser.add_argument('--swig', default='swig')
    parser.add_argument('--depfile', type=pathlib.Path)
    parser.add_argument('rest', nargs='*', metavar='ARGUMENT_OF_SWIG')
    options = parser.parse_args()
    model = Model(options.swig, options.include)
    if options.language == 'python':
        options.out.mkdir(parents=True, exist_ok=True)
        Python(model, options.out, None).write()
        if options.depfile:
            headers = ' '.join(str(path) for path in sorted(options.include.glob('gmm/*.h')))
            options.depfile.write_text(f'values.py values.i: {headers}\n')
        return
    shutil.rmtree(options.out, ignore_errors=True)
    values = options.out / 'values'
    values.mkdir(parents=True)
    {'java': Java, 'csharp': CSharp}[options.language](model, values, options.members).write()
    (options.out / 'values.i').write_text(typemaps(model))
    if options.rest:
        out = str(options.out)
        sys.exit(subprocess.run([options.swig, f'-I{out}', '-outdir', out] + options.rest).returncode)


def typemaps(model):
    """For SWIG: handles are addresses, structs are bytes."""
    made = f'/* {NOTICE} */\n'
    for handle in model.handles:
        if not handle.startswith(LEFT_OUT):
            made += f'%apply void *GMM_ADDRESS {{ {handle} * }}\n'
            made += f'%apply SWIGTYPE **GMM_OUT_HANDLE {{ {handle} **out }}\n'
            made += f'%ignore {handle};\n'
    for struct in model.structs.values():
        if not struct.c_name.startswith(LEFT_OUT):
            made += f'%ignore {struct.c_name};\n'
            made += ''.join(f'%ignore {struct.c_name}::{field.c_name};\n' for field in struct.fields)
    for struct in model.values():
        pattern = 'const void *GMM_OPTIONS' if struct.is_options else 'void *GMM_ANSWER'
        made += f'%apply {pattern} {{ {"const " if struct.is_options else ""}{struct.c_name} * }}\n'
    return made


if __name__ == '__main__':
    main()
