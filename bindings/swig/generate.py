# SPDX-License-Identifier: Apache-2.0
"""Writes the values, options, enums and forwarding methods of a language from the C headers.

Usage: generate.py --language java|csharp|python --include FOLDER --out FOLDER [--members FOLDER] [--swig SWIG]
                   [-- ARGUMENT_OF_SWIG...]

SWIG parses the headers (swig -xml); the documentation is that of the headers' comments. With arguments for SWIG, SWIG
then writes the calls. FOLDER is emptied first, so that no class of an older interface is left in it. For Python it
gets values.py, and values.i for SWIG.

The rules, which a new field, flag, enumerator, struct or function follows without work:
 - `typedef uint32_t gmm_x;` before an enum makes it the enum X. The enumerators lose their common prefix.
 - A struct *_info (and gmm_lease_ask) is an answer: an immutable value, which reads the bytes of the C struct.
 - A struct *_desc is a class of options, which encodes itself into the bytes of the C struct (struct.h).
 - A field whose comment begins with `GMM_X_*` holds the flags of that prefix: each is a property that is true or false.
   The number itself is shown if the field has another name than `flags`.
 - A field whose comment begins with "1 if" or "1:" is true or false. Reserved fields, fields that must be 0, functions
   and handles are left out.
 - Text and lists of options (a pointer, with `<singular>_count` beside it) lie behind the struct.
 - A field that has the name of a flag of its struct sets that flag (gmm_scope_desc).
 - A function that takes a handle and no callback, and makes no object, is a method that forwards to it. The handle is
   the class. A function of an address of a block is a method of the context and of the buffer, there also for a part.
 - FOLDER/<Class>.java of --members has the members of a class that are written by hand. C# has partial classes. The
   forwarding methods of Java's class X are in XCalls, which X extends.
"""
import argparse
import collections
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
FIELD_NAMES = {'gmm_context_desc.log': 'logger', 'gmm_lease_desc.floor_bytes': 'floor'}
FLAG_NAMES = [(re.compile(r'GMM_IPC_ROUTE_(\w+)'), r'\1_ipc')]
# Flags that a program passes around are an enum of their own.
FLAG_ENUMS = {'GMM_WATCH_': 'watch_event'}
# Numbers, though some of their values have names.
SCALARS = {'gmm_tag', 'gmm_device', 'gmm_stream'}
# The interface of a language that stands for a callback. Other callbacks are left to C.
CALLBACKS = {'gmm_log_callback': 'logger', 'gmm_progress_callback': 'progress',
             'gmm_lease_ask_callback': 'lease_handler'}
# Lists and callbacks that a call gets beside the options.
ARGUMENTS = {'gmm_pause_desc.tags', 'gmm_watch_desc.callback'}
# Classes that only the hand-written layers use.
INTERNAL = {'gmm_ipc_fd_info', 'gmm_snapshot_info', 'gmm_pin_desc', 'gmm_ipc_import_desc', 'gmm_ipc_fd_desc',
            'gmm_stream_desc', 'gmm_event_desc'}
# Made of functions, so C and C++ alone have it; and the elements of a list that is a map.
LEFT_OUT = ('gmm_semaphore_', 'gmm_lease_amount')
# The classes of handles that have forwarding methods. A tag is a number of its context, a buffer a block of it.
OWNERS = {'gmm_context': 'context', 'gmm_heap': 'heap', 'gmm_event': 'event', 'gmm_ticket': 'ticket',
          'gmm_lease': 'lease'}
METHOD_NAMES = {f'gmm_{name}': own for name, own in {
    'context_set_decommit': 'set_decommit_after_ms', 'device_query': 'device', 'ipc_configure': 'configure_ipc',
    'ipc_export': 'export_handle', 'event_export': 'export_handle', 'ipc_export_legacy': 'export_legacy',
    'tag_configure': 'update', 'tag_find': 'find_tag', 'tag_set_default': 'set_process_default_tag',
    'backup_configure': 'set_backup', 'backup_reserve': 'prepare_backup', 'backup_query': 'backup_info',
    'backup_discard': 'discard_backup', 'limit_set': 'set_limit', 'stats_query': 'statistics',
    'stream_synchronize': 'synchronize', 'stream_forget': 'forget'}.items()}
BUFFER_NAMES = {'name': 'set_name', 'resume_range': 'resume'}
# Functions that are more than a call in the languages: they own, keep, order, or throw something.
BY_HAND = {f'gmm_{name}' for name in (
    'context_retain context_release ipc_close ipc_export_fd lease_offer lease_return lease_destroy try_free tag_create '
    'tag_push tag_pop ticket_commit ticket_cancel ticket_destroy unpin reset defer_begin defer_end stream_create '
    'stream_destroy event_record event_destroy heap_destroy').split()}
MILLISECONDS = {'java': 'millis', 'csharp': 'milliseconds', 'python': 'ms'}
MICROSECONDS = {'java': 'micros', 'csharp': 'microseconds', 'python': 'us'}
NOTICE = 'Written by bindings/swig/generate.py from include/gmm.'


# --- The model: the headers as SWIG reads them, with their comments -------------------------------------------

Enumerator = collections.namedtuple('Enumerator', 'c_name value doc')
# handle: the type of the first parameter; parameters: (type of C, name) of the others.
Function = collections.namedtuple('Function', 'c_name handle parameters doc')


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
    """The comments of a header by what they describe: a type, an enumerator, "struct.field", or a function."""
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
            last = re.findall(r'(gmm_\w+)\(', match['field'])[:1]
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
        self.functions, self.unread = [], []
        umbrella = (include / 'gmm' / 'gmm.h').read_text()
        headers = re.findall(r'#include <(gmm/\w+\.h)>', umbrella)
        for header in headers:
            text = (include / header).read_text()
            self.comments.update(comments_of(text))
            for name, value in re.findall(r'^#define (GMM_\w+) ([^\n]+?)\s*(?:/\*.*)?$', text, re.M):
                if number(value) is not None:
                    self.constants[name] = number(value)
                    self.unread += [] if re.match(r'-?\d', value) else [name]
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
            parameters = [tuple(parm.find(f'.//attribute[@name="{key}"]').get('value', '') for key in ('type', 'name'))
                          for parm in child.findall('attributelist/parmlist/parm')] if 'gmm_' in decl else []
            if values.get('kind') == 'function' and parameters and parameters[0][0].startswith('p.gmm_'):
                self.functions.append(Function(name, parameters[0][0][2:], parameters[1:],
                                               self.comments.get(name, '')))
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

    def macros(self):
        """For SWIG: the macros that it cannot read, for their casts and names of <stdint.h>."""
        types = {name: 'int32_t' if self.constants[name] < 0 else 'uint32_t' if self.constants[name] < 1 << 32
                 else 'uint64_t' for name in self.unread}
        return f'/* {NOTICE} */\n' + ''.join(
            f'%constant {c_type} {name} = {self.constants[name]}{"ull" if c_type == "uint64_t" else ""};\n'
            for name, c_type in types.items())

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
        if c_type in CALLBACKS or f'{struct.c_name}.{name}' in ARGUMENTS:
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

    def argument_kind(self, c_type, name):
        """The kind of a parameter for a method that forwards; None: the function is more than that."""
        kinds = {'p.q(const).char': 'text', 'p.void': 'address', 'p.q(const).void': 'address', 'p.void out': None,
                 'p.uint64_t bytes': 'out_u64', 'p.gmm_tag out': 'out_tag', 'p.p.gmm_ticket out': 'out_ticket',
                 'p.gmm_ipc_handle out': 'out_handle', 'gmm_stream': 'stream', 'gmm_tag': 'tag', 'uint32_t': 'u32',
                 'int32_t': 'i32', 'gmm_device': 'i32', 'uint64_t': 'u64', 'uint64_t timeout_ms': None,
                 **{enum.c_name: 'enum' for enum in self.enums if enum.c_name}}
        struct = self.structs.get(c_type.replace('q(const).', '')[2:])
        if struct and struct.c_name == 'gmm_pause_desc':
            return 'pause'
        if struct in self.values() and not any(f'{struct.c_name}.{field.c_name}' in ARGUMENTS
                                               or field.kind == 'callback' for field in struct.fields):
            return 'options' if struct.is_options else 'answer'
        return kinds.get(f'{c_type} {name}', kinds.get(c_type))

    def forwarding(self):
        """By class: its methods, each a function with the parameters that are left of it, and its name."""
        found = {owner: [] for owner in [*OWNERS.values(), 'tag', 'buffer']}
        for function in self.functions:
            arguments = [(self.argument_kind(*parameter), *parameter) for parameter in function.parameters]
            if (function.handle not in OWNERS or function.c_name in BY_HAND
                    or any(kind is None for kind, _, _ in arguments)):
                continue
            owner, is_tag = OWNERS[function.handle], arguments[:1] == [('tag', 'gmm_tag', 'tag')]
            owner = 'tag' if is_tag and function.c_name != 'gmm_tag_set_default' else owner
            name = METHOD_NAMES.get(function.c_name, re.sub(f'^gmm_({owner}_)?', '', function.c_name))
            name = 'info' if function.c_name == f'gmm_{owner}_query' else name
            found[owner].append((name, function, arguments[owner == 'tag':]))
            if ('pause', 'p.q(const).gmm_pause_desc', 'desc') in arguments:
                found['tag'].append((name, function, arguments))
            addresses = [kind for kind, _, _ in arguments if kind == 'address']
            if addresses == ['address'] and arguments[0][0] == 'address' and function.c_name != 'gmm_free':
                found['buffer'].append((BUFFER_NAMES.get(name, name), function, arguments[1:]))
        return found

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

    def is_unbounded(self, described):
        """Whether a number may stand for all bits, so that it may be negative in a language without a sign."""
        special = [name for name, value in self.constants.items() if value == 0xffffffffffffffff]
        return any(name in described.doc for name in special) or described.doc.startswith('bit ')


# --- The languages --------------------------------------------------------------------------------------------

class Writer:
    """The common part of the languages. A subclass writes one."""
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
        doc = re.sub(r'(?<!\w)::(?=\w)', '', doc or f'The {words}.').replace('::', '.').strip()
        doc = f'The {words} in bytes.' if doc == 'bytes' else doc
        doc = doc[0].upper() + doc[1:] if not re.match(r'(gmm_|GMM_|cu[A-Z]|cuda)', doc) else doc
        return doc if doc[-1] in '.:!?|' else doc + '.'

    def paragraphs(self, doc):
        return [re.sub(r'\s+', ' ', part).strip() for part in re.split(r'\n\s*\n', doc) if part.strip()]

    def sections(self, doc):
        """The paragraphs of a function's comment, and its parameters' descriptions."""
        doc = re.sub(r'\bNULL\b', 'null', re.sub(r'^(@param|[A-Z]\w+:)', r'\n\n\1', doc, flags=re.M))
        parts = [part for part in self.paragraphs(doc) if not part.startswith('Since:')]
        tags = [re.match(r'@param(?:\[\w+\])? (\w+) (.*)', part) for part in parts]
        return ('\n\n'.join(part for part in parts if not part.startswith('@')),
                {tag[1]: tag[2].strip() for tag in tags if tag})

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


class Compiled(Writer):
    """The common part of Java and C#: a class a struct, and methods that forward. Templates are the language's."""

    def type_of(self, field):
        if field.kind == 'enum':
            return self.type_name(field.c_type)
        if field.kind in ('event', 'events') and field.kind not in self.types:
            return self.flag_enum(field.element)
        if field.kind == 'callback':
            return self.prefix + self.pascal(CALLBACKS[field.c_type])
        return self.types[field.kind]

    def answer(self, struct):
        getters, shown = '', []
        for field in self.shown(struct):
            own, kind = self.case(self.field_name(struct, field)), self.type_of(field)
            value = self.reads.get(field.kind, self.reads['u32']).format(at=field.at, count=field.count, type=kind)
            if field.kind != 'flags' or field.c_name != 'flags':
                getters += self.getter(field.doc, field.c_name, kind, own, value)
                shown.append((own, field.kind))
            for item, flag in self.own_flags(struct, field) if field.kind == 'flags' else []:
                getters += self.getter(item.doc, flag, self.types['bool'], self.case(flag),
                                       f'({value} & {item.value}) != 0')
                shown.append((self.case(flag), 'bool'))
            if field.kind == 'mask':
                getters += self.member_of(self.type_name(field.element), own, value)
        return self.answer_class(struct, getters, shown)

    def options(self, struct):
        members, encode, users, shown = '', '', [], []
        for field in struct.fields:
            own, at, value = self.case(self.field_name(struct, field)), field.at, None
            is_argument = f'{struct.c_name}.{field.c_name}' in ARGUMENTS
            if field.kind == 'callback':
                users.append(f'{self.types["address"]} {self.camel(field.c_name)}User')
                value = f'"{field.c_type}", {self.camel(field.c_name)}User'
            elif field.kind == 'list':
                count_at = next(each.at for each in struct.fields if each.c_name == field.c_name[:-1] + '_count')
                own = field.c_name if is_argument else own
                users += [f'{self.types["tag"]}[] {own}'] if is_argument else []
                value = f'{count_at}, {own}'
            elif field.kind == 'flags':
                value = self.flags(struct, field)
            elif field.kind != 'skip':
                is_optional = self.scope_flag(struct, field) is not None and field.kind != 'tag'
                value = self.puts.get((field.kind, is_optional), self.puts.get(field.kind, '{own}')).format(
                    own=own, type=self.type_of(field), pascal=self.pascal(field.c_name))
            if value is not None:
                encode += self.line(f'to.{self.case("put")}({at}, {value})')
            if field.kind != 'skip' and not is_argument:
                text, names = self.setter(struct, field, own)
                members += text
                shown += [(name, field.kind) for name in names]
        return self.options_class(struct, members, ', '.join(users), encode, shown)

    def is_size(self, field):
        return field.kind == 'u64' and not self.model.is_unbounded(field)

    def pair(self, field):
        """The fields of an element of a list that is a map, a number and bytes; None for a list of numbers."""
        element = self.model.structs.get(field.element)
        return element and [each for each in element.fields if each.kind in ('i32', 'u32', 'u64')]

    def methods(self, owner):
        """The methods that forward. Those of a buffer that take a size have a form for a part of it, too."""
        made = ''
        for name, function, arguments in self.model.forwarding()[owner]:
            name = self.case(self.method_names.get(name, name))
            if arguments and arguments[0][0] == 'pause':
                made += self.pausing(owner, name, function, arguments[1][0] == 'out_ticket')
                continue
            made += self.method(owner, name, function, arguments, False)
            if owner == 'buffer' and ('u64', 'uint64_t', 'size') in arguments:
                made += self.method(owner, name, function, arguments, True)
        return made

    def pausing(self, owner, name, function, is_async):
        """The methods of a pause or resume of tags, with options and without."""
        text, described = self.sections(function.doc)
        kind = self.prefix + 'Ticket' if is_async else self.types['u64']
        tags = [('param', 'options', ''), ('param', 'tags', 'none: every tag')][:1 + (owner == 'context')]
        tags += [('returns', None, described.get('bytes', '').replace('; may be null', ''))] if not is_async else []
        return self.pausing_text(owner, name, kind, text, tags, function.c_name, is_async)

    def method(self, owner, name, function, arguments, is_part):
        """A method that forwards; is_part: the form for a part of a buffer."""
        passed, parameters, body, stream, result = [*self.first.get(owner, self.first[None])], [], '', None, None
        if is_part:
            passed[-1] = self.part
            parameters = [(self.types['u64'], 'offset', ''), (self.types['u64'], 'length', '')]
            body = self.line(f'{self.case("check")}(offset, length)')
        for kind, c_type, c_name in arguments:
            own = self.camel('options' if c_name == 'desc' else c_name)
            c_type = re.sub(r'^p\.|q\(const\)\.', '', c_type)
            own_type = self.types.get(kind) or self.type_name(c_type)
            if kind in self.outs:
                result = [each.format(type=own_type) for each in self.outs[kind]]
                passed.append(result[2])
            elif owner == 'buffer' and c_name == 'size':
                passed.append(self.casts.get('u64', '{own}').format(own='length' if is_part else self.size))
            else:
                parameters.append((own_type, own, c_name))
                passed.append(self.casts.get(kind, '{own}').format(own=own))
                if kind == 'u64':
                    body += self.line(self.check[self.model.is_unbounded(function)].format(own=own))
                if kind == 'stream':
                    stream = own
                elif kind == 'options' and any(each.kind == 'stream' for each in self.model.structs[c_type].fields):
                    stream = self.stream_of.format(own=own)
        text, described = self.sections(function.doc)
        tags = [('param', own, described.get(c_name, '')) for _, own, c_name in parameters]
        if result and described.get('bytes'):
            tags.append(('returns', None, described['bytes'].replace('; may be null', '')))
        optional = 0
        while optional < len(parameters) and described.get(parameters[-1 - optional][2], '').startswith('null:'):
            optional += 1
        call = f'Native.{function.c_name}({", ".join(passed)})'
        return self.method_text(owner, name, text, tags, parameters, optional, result, body, stream, call)


class Java(Compiled):
    language, prefix = 'java', ''
    case = Writer.camel
    types = {'bool': 'boolean', 'u32': 'int', 'i32': 'int', 'u64': 'long', 'address': 'long', 'name': 'String',
             'text': 'String', 'bytes': 'byte[]', 'mask': 'int', 'flags': 'int', 'events': 'int', 'tag': 'Tag',
             'stream': 'Stream'}
    reads = {'u32': 'in.getInt({at})', 'u64': 'in.getLong({at})', 'address': 'in.getLong({at})',
             'bool': 'in.getInt({at}) != 0', 'enum': '{type}.of(in.getInt({at}))',
             'event': '{type}.of(in.getInt({at}))', 'name': 'Struct.text(in, {at}, {count})',
             'bytes': 'Struct.bytes(in, {at}, {count})'}
    puts = {'enum': '{own}.value()', 'events': '{own} != 0 ? {own} : default{pascal}()'}
    method_names = {}
    # How a method of a class calls C with its handle, and the arguments that come first.
    opens = {'tag': 'context.run(self -> ', 'buffer': 'run((context, self) -> ', None: 'run(self -> '}
    first = {'tag': ['self', 'number'], 'buffer': ['context', 'self'], None: ['self']}
    part, size = 'self + offset', 'size'
    casts = {'options': '{own} == null ? null : {own}.encode()', 'tag': '{own}.number()', 'enum': '{own}.value()',
             'stream': 'on'}
    check = ['Text.checkSize("{own}", {own})', 'Text.checkSizeOrAll("{own}", {own})']
    stream_of = '({own} == null ? Stream.DEFAULT : {own}.stream)'
    # The type of the answer, how it is declared and passed, and its value.
    outs = {'out_u64': ('long', 'long[] out = new long[1]', 'out', 'out[0]'),
            'out_tag': ('Tag', 'int[] out = new int[1]', 'out', 'new Tag((Context) this, out[0])'),
            'out_handle': ('byte[]', 'byte[] out = new byte[Context.IPC_HANDLE_SIZE]', 'out', 'out'),
            'answer': ('{type}', 'byte[] out = {type}.bytesForC()', 'out', 'new {type}(out)')}

    def line(self, code):
        return f'        {code};\n'

    def doc(self, doc, otherwise, indent, tags=()):
        """A javadoc comment."""
        made = []
        for part in self.paragraphs(self.text(doc, otherwise)):
            made.append(('<p>' if made else '') + part)
        made += [f'@return {self.text(text, kind)}' if kind == 'returns' else f'@param {name} {self.text(text, name)}'
                 for kind, name, text in tags if text]
        made = [re.sub(r'`([^`]*)`', r'{@code \1}', re.sub('<(?!p>)', '&lt;', part.replace('&', '&amp;')))
                for part in made]
        if len(made) == 1 and len(made[0]) <= 110 - len(indent):
            return f'{indent}/** {made[0]} */\n'
        lines = [line for part in made
                 for line in ([] if part[0] == '@' else ['']) + textwrap.wrap(part, 116 - len(indent))][1:]
        return f'{indent}/**\n' + ''.join(f'{indent} * {line}'.rstrip() + '\n' for line in lines) + f'{indent} */\n'

    def write(self):
        for enum in self.model.types():
            self.write_enum(self.type_name(enum.c_name), enum, enum.doc)
        for name, enum in self.model.flag_enums():
            self.write_enum(self.pascal(name), enum, f'{self.pascal(name)}s.')
        for struct in self.model.answers():
            self.save(self.type_name(struct.c_name), self.answer(struct), struct.c_name not in INTERNAL)
        for struct in self.model.options():
            self.save(self.type_name(struct.c_name), self.options(struct), struct.c_name not in INTERNAL)
        for owner in self.model.forwarding():
            name = self.pascal(owner)
            base = {'tag': 'TagNumber', 'buffer': 'NativeBlock'}.get(owner, 'NativeObject')
            self.save(f'{name}Calls', f'/** The methods of a {owner} that only forward to the C interface. */\n'
                      f'abstract class {name}Calls extends {base} {{\n    {name}Calls({self.make[base][0]}) {{\n'
                      f'        super({self.make[base][1]});\n    }}\n{self.methods(owner)}}}\n')

    make = {'TagNumber': ('Context context, int number', 'context, number'),
            'NativeBlock': ('Handle handle, Handle context, long size, boolean isImport',
                            'handle, context, size, isImport'),
            'NativeObject': ('Handle handle', 'handle')}

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
        body += f""";

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
        self.save(name, body)

    def flag_enum(self, element):
        return self.pascal(FLAG_ENUMS[element])

    def getter(self, doc, otherwise, kind, own, value):
        return (f'\n{self.doc(doc, otherwise, "    ")}    public {kind} {own}() {{\n        return {value};\n'
                '    }\n')

    def member_of(self, kind, own, value):
        return (f'\n    /** Whether this {kind} is among the {own}. */\n    public boolean has({kind} value) {{\n'
                f'        return ({value} & 1 << value.value()) != 0;\n    }}\n')

    def answer_class(self, struct, getters, shown):
        name = self.type_name(struct.c_name)
        return (self.doc(struct.doc, name, '') + f'public final class {name} {{\n'
                f'    private final java.nio.ByteBuffer in;\n\n    /** From the bytes of a {struct.c_name}. */\n'
                f'    {name}(byte[] from) {{\n'
                f'        in = Struct.answer(from, {struct.size});\n    }}\n\n    /** Bytes for C to fill. */\n'
                f'    static byte[] bytesForC() {{\n        return Struct.forAnswer({struct.size});\n    }}\n{getters}'
                + self.to_string(name, [(own, f'Struct.hex({own}())' if kind in ('address', 'bytes') else f'{own}()')
                                        for own, kind in shown]))

    def to_string(self, name, shown):
        lines = [f'"{name}[{shown[0][0]}=" + {shown[0][1]}'] + [f'", {own}=" + {value}' for own, value in shown[1:]]
        return ('\n    @Override\n    public String toString() {\n        return '
                + '\n            + '.join(lines) + '\n            + "]";\n    }\n}\n')

    def flags(self, struct, field):
        return self.camel(field.c_name)

    def setter(self, struct, field, own):
        """The field and the methods that set it."""
        setters = ''

        def add(name, parameter, doc, otherwise, code):
            nonlocal setters
            setters += ('\n' + self.doc(doc, otherwise, '    ') + f'    public {self.type_name(struct.c_name)} '
                        f'{name}({parameter}) {{\n        {code}\n        return this;\n    }}\n')

        kind, initial, pair = self.type_of(field) if field.kind != 'list' else '', '', None
        if field.kind == 'list':
            pair, singular = self.pair(field), self.camel(field.c_name[:-1])
            kind = 'final java.util.' + ('Map<Integer, Long>' if pair else 'List<Integer>')
            initial = ' = new java.util.' + ('TreeMap<>()' if pair else 'ArrayList<>()')
            if pair:
                number, size = (self.camel(each.c_name) for each in pair)
                add(singular, f'int {number}, long {size}', field.doc, singular,
                    f'{own}.put({number}, Text.checkSize("{size}", {size}));')
            else:
                add(singular, 'int value', field.doc, singular, f'{own}.add(value);')
        elif field.kind == 'flags':
            for item, flag in self.own_flags(struct, field):
                add(self.camel(flag), '', item.doc, flag, f'{own} |= {item.value};')
        elif field.kind == 'events':
            event = self.flag_enum(field.element)
            add(own, f'{event}... value', field.doc, own, f'{own} = 0;\n        for ({event} each : value) {{\n'
                f'            {own} |= each.value();\n        }}')
        else:
            if field.kind == 'enum':
                zero = [item for item in self.model.enum_of(field.c_type).items if item.value == 0]
                initial = f' = {kind}.{self.model.enum_of(field.c_type).short(zero[0])}' if zero else ''
            initial = ' = Stream.DEFAULT' if field.kind == 'stream' else initial
            value = f'Text.checkSize("{own}", value)' if self.is_size(field) else 'value'
            applies = self.scope_flag(struct, field)
            add(own, f'{kind} value', field.doc, field.c_name,
                f'{own} = {value};' + (f' flags |= {applies.value};' if applies else ''))
        return f'\n    {kind} {own}{initial};\n' + setters, [own]

    def options_class(self, struct, members, users, encode, shown):
        name = self.type_name(struct.c_name)
        return (self.doc(struct.doc + '\n\nEach method changes this object and returns it.', name, '')
                + f'public final class {name} {{{members}\n    /** The bytes of a {struct.c_name}. */\n'
                f'    byte[] encode({users}) {{\n        Struct to = new Struct({struct.size});\n{encode}'
                '        return to.bytes();\n    }\n' + self.to_string(name, [(own, own) for own, _ in shown]))

    def method_text(self, owner, name, text, tags, parameters, optional, result, body, stream, call):
        kind, declare, _, value = result or ('void', None, None, None)
        call = f'{stream}.run(on -> {call})' if stream else call
        steps = [declare, f'{self.opens.get(owner, self.opens[None])}{call})', value and f'return {value}']
        body += ''.join(self.line(step) for step in steps if step)
        made = ''
        for left in range(len(parameters), len(parameters) - optional - 1, -1):
            if left < len(parameters):
                given = ', '.join([own for _, own, _ in parameters[:left]] + ['null'])
                types = ', '.join(each[0] for each in parameters[:left + 1])
                text, tags = f'Does the same as {{@link #{name}({types})}} with null.', ()
                body = self.line(f'{"return " if value else ""}{name}({given})')
            taken = ', '.join(f'{each} {own}' for each, own, _ in parameters[:left])
            made += '\n' + self.doc(text, name, '    ', tags) + f'    public {kind} {name}({taken}) {{\n{body}    }}\n'
        return made

    def pausing_text(self, owner, name, kind, text, tags, function, is_async):
        more, all_tags = (', Tag... tags', ', tags') if owner == 'context' else ('', ', (Tag) this')
        code = (f'context.{name}(options{all_tags})' if owner == 'tag' else
                f'{"Ticket.start" if is_async else "ProgressCall.run"}(handle, Native::{function}, options, tags)')
        return ('\n' + self.doc(text, name, '    ', tags) + f'    public {kind} {name}(PauseOptions options{more}) {{\n'
                f'        return {code};\n    }}\n\n    /** Does the same as the other method, with no options. */\n'
                f'    public {kind} {name}({more[2:]}) {{\n'
                f'        return {name}(new PauseOptions(){", tags" if more else ""});\n    }}\n')


class CSharp(Compiled):
    language, prefix = 'csharp', 'Gmm'
    case = Writer.pascal
    types = {'bool': 'bool', 'u32': 'int', 'i32': 'int', 'u64': 'long', 'address': 'IntPtr', 'name': 'string',
             'text': 'string', 'bytes': 'byte[]', 'mask': 'int', 'flags': 'int', 'tag': 'GmmTag', 'stream': 'GmmStream'}
    reads = {'u32': 'fields.Int({at})', 'u64': 'fields.Long({at})', 'address': 'fields.Address({at})',
             'bool': 'fields.Int({at}) != 0', 'enum': '({type})fields.Int({at})', 'event': '({type})fields.Int({at})',
             'name': 'fields.Text({at}, {count})', 'bytes': 'fields.Bytes({at}, {count})'}
    puts = {'enum': '(int){own}', ('enum', True): '(int)({own} ?? 0)', ('u32', True): '{own} ?? 0',
            ('i32', True): '{own} ?? 0', 'address': '(long){own}',
            'events': '(int)({own} == {type}.None ? Default{own} : {own})'}
    method_names = {'export_handle': 'export'}
    opens = {'tag': 'new Use(context.handle)', 'buffer': 'Using()', None: 'new Use(handle)'}
    first = {'tag': ['self.Address', '(uint)Number'], 'buffer': ['context.DangerousGetHandle()', 'self.Address'],
             None: ['self.Address']}
    part, size = '(IntPtr)((long)self.Address + offset)', 'Size'
    casts = {'options': '{own}?.Encode()', 'tag': '(uint){own}.Number', 'enum': '(uint){own}', 'stream': 'on.Address',
             'u64': '(ulong){own}', 'u32': '(uint){own}'}
    check = ['Show.CheckSize("{own}", {own})', 'Show.CheckSize("{own}", {own}, true)']
    stream_of = '{own}?.Stream'
    outs = {'out_u64': ('long', '', 'out ulong returned', '(long)returned'),
            'out_tag': ('GmmTag', '', 'out uint tag', 'new GmmTag(this, tag)'),
            'out_handle': ('byte[]', 'byte[] bytes = new byte[GmmContext.IpcHandleSize]', 'bytes', 'bytes'),
            'answer': ('{type}', 'byte[] info = {type}.BytesForC()', 'info', 'new {type}(info)')}

    def line(self, code):
        return f'            {code};\n'

    def doc(self, doc, otherwise, indent='        ', tags=()):
        """A summary of XML."""
        parts = [('summary', part) for part in self.paragraphs(self.text(doc, otherwise))]
        parts += [(f'{kind} name="{name}"' if name else kind, self.text(text, name or kind))
                  for kind, name, text in tags]
        parts = [(tag, part.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')) for tag, part in parts]
        made = ''
        for tag in dict.fromkeys(tag for tag, _ in parts):
            inside, end = [part for each, part in parts if each == tag], f'</{tag.split()[0]}>'
            if len(inside) == 1 and len(inside[0]) <= 90 - len(indent):
                made += f'{indent}/// <{tag}>{inside[0]}{end}\n'
            else:
                lines = [line for part in inside for line in textwrap.wrap(part, 114 - len(indent))]
                made += ''.join(f'{indent}/// {line}\n' for line in [f'<{tag}>', *lines, end])
        return made

    def type_name(self, c_name):
        return 'Gmm' + super().type_name(c_name)

    def flag_enum(self, element):
        return f'Gmm{self.pascal(FLAG_ENUMS[element])}s'

    def write(self):
        made = [self.enum(self.type_name(enum.c_name), enum, enum.doc) for enum in self.model.types()]
        for name, enum in self.model.flag_enums():
            made.append(self.enum(self.flag_enum(enum.prefix), enum, f'{self.pascal(name)}s.', is_set=True))
        made += [self.answer(struct) for struct in self.model.answers()]
        made += [self.options(struct) for struct in self.model.options()]
        made += [f'    public sealed partial class Gmm{self.pascal(owner)}\n    {{{self.methods(owner)}    }}\n'
                 for owner in self.model.forwarding()]
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

    def value_class(self, struct, body, shown):
        name, access = self.type_name(struct.c_name), 'internal' if struct.c_name in INTERNAL else 'public'
        lines = [f'"{name} {{ {shown[0][0]} = " + Show.Value({shown[0][0]})']
        lines += [f'", {own} = " + Show.Value({own})' for own, _ in shown[1:]]
        return (self.doc(struct.doc, name, '    ') + f'    {access} sealed partial class {name}\n    {{\n{body}'
                '\n        /// <inheritdoc/>\n        public override string ToString()\n        {\n            return '
                + '\n                + '.join(lines) + '\n                + " }";\n        }\n    }\n')

    def getter(self, doc, otherwise, kind, own, value):
        return '\n' + self.doc(doc, otherwise) + f'        public {kind} {own} => {value};\n'

    def member_of(self, kind, own, value):
        return (f'\n        /// <summary>Whether this one is among the {own}.</summary>\n'
                f'        public bool Has({kind} value) => ({value} & 1 << (int)value) != 0;\n')

    def answer_class(self, struct, getters, shown):
        name = self.type_name(struct.c_name)
        return self.value_class(struct, f'''        private readonly Struct fields;

        /// <summary>From the bytes of a {struct.c_name}.</summary>
        internal {name}(byte[] from) => fields = Struct.Answer(from, {struct.size});

        /// <summary>Bytes for C to fill.</summary>
        internal static byte[] BytesForC() => Struct.ForAnswer({struct.size});
{getters}''', shown)

    def flags(self, struct, field):
        items = [(item, self.pascal(flag)) for item, flag in self.own_flags(struct, field)]
        items += [(self.scope_flag(struct, other), f'{self.pascal(other.c_name)} != null') for other in struct.fields
                  if self.scope_flag(struct, other)]
        return ' | '.join(f'({test} ? {item.value} : 0)' for item, test in items)

    def setter(self, struct, field, own):
        """The properties of a field."""
        rest, names = 'get; set; }', [own]
        if field.kind == 'flags':
            names = [self.pascal(flag) for _, flag in self.own_flags(struct, field)]
            return ''.join(f'\n{self.doc(item.doc, name)}        public bool {name} {{ {rest}\n'
                           for (item, _), name in zip(self.own_flags(struct, field), names)), names
        if field.kind == 'list':
            kind, made = ('IDictionary', 'Dictionary<int, long>') if self.pair(field) else ('IList', 'List<int>')
            kind, rest = kind + made[made.index('<'):], f'get; }} = new {made}();'
        else:
            is_optional = self.scope_flag(struct, field) and field.kind != 'tag'
            kind = self.type_of(field) + ('?' if is_optional else '')
        text = '\n' + self.doc(field.doc, field.c_name)
        if self.is_size(field):
            at = own[0].lower() + own[1:]
            return f'''
        private long {at};
{text}        public long {own}
        {{
            get => {at};
            set => {at} = Show.CheckSize("{own}", value);
        }}
''', names
        return f'{text}        public {kind} {own} {{ {rest}\n', names

    def options_class(self, struct, members, users, encode, shown):
        return self.value_class(struct, f'''{members[1:]}
        /// <summary>The bytes of a {struct.c_name}.</summary>
        internal byte[] Encode({users})
        {{
            Struct to = new Struct({struct.size});
{encode}            return to.Bytes();
        }}
''', shown)

    def method_text(self, owner, name, text, tags, parameters, optional, result, body, stream, call):
        kind, declare, _, value = result or ('void', None, None, None)
        taken = ', '.join(f'{each} {own}' + (' = null' if i >= len(parameters) - optional else '')
                          for i, (each, own, _) in enumerate(parameters))
        uses = [f'self = {self.opens.get(owner, self.opens[None])}', stream and f'on = new Use({stream})']
        steps = [declare, call, value and f'return {value}']
        return ('\n' + self.doc(text, name, tags=tags) + f'        public {kind} {name}({taken})\n        {{\n{body}'
                + ''.join(f'            using (Use {use})\n' for use in uses if use) + '            {\n'
                + ''.join(f'    {self.line(step)}' for step in steps if step) + '            }\n        }\n')

    def pausing_text(self, owner, name, kind, text, tags, function, is_async):
        more = ', params GmmTag[] tags' if owner == 'context' else ''
        code = (f'context.{name}(options, this)' if owner == 'tag' else
                ('new GmmTicket' if is_async else 'ProgressCall.Run') + f'(handle, Native.{function}, options, tags)')
        return f'''
{self.doc(text, name, tags=tags)}        public {kind} {name}(GmmPauseOptions options{more})
        {{
            return {code};
        }}

        /// <summary>Does the same as the other method, with no options.</summary>
        public {kind} {name}({more[2:]}) => {name}(new GmmPauseOptions(){", tags" if more else ""});
'''


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
                'from typing import NamedTuple\n\nfrom gmm._core.words import lines, pre\n\n'
                + ''.join(f'{name[len("GMM_"):]} = {value}\n' for name, value in self.model.constants.items()),
                'def _known(kind, value: int):\n    """The enumerator; a number of a newer library stays a number."""\n'
                '    try:\n        return kind(value)\n    except ValueError:\n        return value\n']
        made += [self.enum(one) for one in self.model.enums if not one.c_name or one in self.model.types()]
        made += [self.answer(struct) for struct in self.model.answers()]
        (self.out / 'values.py').write_text('\n\n'.join(made))
        (self.out / 'values.i').write_text(self.typemaps())

    def typemaps(self):
        """For SWIG: handles and answers, and options with the tables by which fields.c reads them."""
        made = self.model.macros()
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
                + '\n    __str__, _repr_html_ = lines, pre  # a field a line; repr() is that of a named tuple\n'
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
    made = model.macros()
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
